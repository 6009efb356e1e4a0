/**
 * The built-in model `echo`, for trying agents without a key. The model calls no server, costs nothing, and returns the
 * same reply for the same conversation. `echo-reply.ts` describes the replies, decision 0123 their limits.
 */
import type {
  LanguageModelV4,
  LanguageModelV4StreamPart,
  LanguageModelV4ToolResultPart,
} from "@ai-sdk/provider";
import { type EchoReply, type EchoTurn, echoReply } from "./echo-reply.ts";
import { estimateTokens, type Message } from "./messages.ts";

type Part = LanguageModelV4StreamPart;

/** Maximum number of deltas in a text. A text has several deltas, so that the stream is visible. */
const piecesMax = 20;

export function echoModel(id: string): LanguageModelV4 {
  const rejectGenerate = () => Promise.reject(new Error("the model echo only streams"));
  return {
    specificationVersion: "v4",
    provider: "echo",
    modelId: id,
    supportedUrls: {},
    doGenerate: rejectGenerate,
    doStream: ({ prompt, tools }) => {
      const names = (tools ?? []).map(({ name }) => name);
      const reply = echoReply(lastTurn(prompt), names);
      const input = prompt.reduce((sum, message) => sum + estimateTokens(message), 0);
      return Promise.resolve({ stream: ReadableStream.from(partsOf(reply, input)) });
    },
  };
}

/** Reads the last message: results of tools, or else the newest input. */
function lastTurn(prompt: readonly Message[]): EchoTurn {
  const last = prompt.at(-1);
  if (last?.role === "tool") {
    const results = last.content.flatMap((part) =>
      part.type === "tool-result" ? [resultText(part.output)] : [],
    );
    return { results };
  }
  const input = prompt.findLast((message) => message.role === "user");
  const texts = input?.content.flatMap((part) => (part.type === "text" ? [part.text] : []));
  return { input: texts?.join("\n") ?? "" };
}

function resultText(output: LanguageModelV4ToolResultPart["output"]): string {
  if (output.type === "text" || output.type === "error-text") return output.value;
  if (output.type === "content")
    return output.value.map((part) => (part.type === "text" ? part.text : `[${part.type}]`)).join("\n");
  return JSON.stringify(output);
}

function partsOf(reply: EchoReply, input: number): Part[] {
  const output = estimateTokens({ role: "user", content: [{ type: "text", text: JSON.stringify(reply) }] });
  const body: Part[] =
    "text" in reply
      ? [
          { type: "text-start", id: "0" },
          ...inPieces(reply.text).map((delta): Part => ({ type: "text-delta", id: "0", delta })),
          { type: "text-end", id: "0" },
        ]
      : reply.calls.map((call, index) => ({
          type: "tool-call",
          toolCallId: String(index),
          toolName: call.tool,
          input: call.arguments,
        }));
  return [
    { type: "stream-start", warnings: [] },
    ...body,
    {
      type: "finish",
      finishReason: { unified: "text" in reply ? "stop" : "tool-calls", raw: undefined },
      usage: {
        inputTokens: { total: input, noCache: input, cacheRead: 0, cacheWrite: 0 },
        outputTokens: { total: output, text: output, reasoning: 0 },
      },
    },
  ];
}

function inPieces(text: string): string[] {
  const words = text.match(/\s*\S+\s*?/g) ?? [text];
  const size = Math.ceil(words.length / piecesMax);
  const pieces: string[] = [];
  for (let at = 0; at < words.length; at += size) pieces.push(words.slice(at, at + size).join(""));
  const missing = text.slice(pieces.join("").length);
  return missing === "" ? pieces : [...pieces, missing];
}
