/** The OpenAI-compatible model of the dev world: `POST /v1/chat/completions` with the replies of the model `echo`. */
import { type EchoReply, echoReply, type EchoTurn } from "@kontor/server/agent/models/echo-reply.ts";
import type { Exchange } from "./exchange.ts";

interface ChatMessage {
  role?: unknown;
  content?: unknown;
}

interface ChatRequest {
  messages?: unknown;
  tools?: unknown;
  stream?: unknown;
}

const head = { id: "chatcmpl-dev", created: 0, model: "echo" };

export function listModels({ reply }: Exchange): void {
  reply(200, { object: "list", data: [{ id: "echo", object: "model", created: 0, owned_by: "kontor" }] });
}

export function complete({ body, reply, stream }: Exchange): void {
  const request = parseRequest(body);
  if (!request)
    return reply(400, {
      error: { message: "The body is not a JSON object with messages.", type: "invalid" },
    });
  const made = echoReply(lastTurn(request.messages), toolNames(request.tools));
  const finish = "text" in made ? "stop" : "tool_calls";
  const usage = usageOf(body, made);
  if (request.stream !== true) {
    const message = { role: "assistant", content: null, ...deltaOf(made) };
    return reply(200, {
      ...head,
      object: "chat.completion",
      choices: [{ index: 0, message, finish_reason: finish }],
      usage,
    });
  }
  const chunk = (delta: object, finish_reason: string | null) =>
    JSON.stringify({
      ...head,
      object: "chat.completion.chunk",
      choices: [{ index: 0, delta, finish_reason }],
    });
  const last = JSON.stringify({ ...head, object: "chat.completion.chunk", choices: [], usage });
  stream([chunk({ role: "assistant", ...deltaOf(made) }, null), chunk({}, finish), last, "[DONE]"]);
}

function parseRequest(body: string): (ChatRequest & { messages: ChatMessage[] }) | undefined {
  try {
    const parsed = JSON.parse(body) as ChatRequest | null;
    if (!Array.isArray(parsed?.messages)) return undefined;
    const messages = parsed.messages.filter((message) => typeof message === "object" && message !== null);
    return { ...parsed, messages: messages as ChatMessage[] };
  } catch {
    return undefined;
  }
}

function lastTurn(messages: readonly ChatMessage[]): EchoTurn {
  const results: string[] = [];
  for (const { role, content } of messages.toReversed()) {
    if (role !== "tool") break;
    results.unshift(textOf(content));
  }
  if (results.length > 0) return { results };
  return { input: textOf(messages.findLast(({ role }) => role === "user")?.content) };
}

function textOf(content: unknown): string {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  const texts = content.map((part: { text?: unknown } | null) => part?.text);
  return texts.filter((text) => typeof text === "string").join("\n");
}

function toolNames(tools: unknown): string[] {
  if (!Array.isArray(tools)) return [];
  const names = tools.map((tool: { function?: { name?: unknown } } | null) => tool?.function?.name);
  return names.filter((name) => typeof name === "string");
}

function deltaOf(made: EchoReply): object {
  if ("text" in made) return { content: made.text };
  const calls = made.calls.map((call, index) => ({
    index,
    id: `call_${index}`,
    type: "function",
    function: { name: call.tool, arguments: call.arguments },
  }));
  return { tool_calls: calls };
}

/** Returns the usage of a request. Four characters count as a token. */
function usageOf(body: string, made: EchoReply) {
  const prompt_tokens = Math.ceil(body.length / 4);
  const completion_tokens = Math.ceil(JSON.stringify(made).length / 4);
  return { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens };
}
