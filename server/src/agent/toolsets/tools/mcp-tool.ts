/** Executes a call of an MCP tool. */
import type { App } from "#app.ts";
import { PausableTimer } from "#lib/concurrency/pausable-timer.ts";
import { toToolResult, toResourceResult } from "#agent/mcp/tool-result.ts";
import type { McpConnection } from "#agent/mcp/connection.ts";
import type { Asker } from "#agent/mcp/asking-calls.ts";
import { mcpConnections } from "#agent/mcp/connections.ts";
import type { Elicitation } from "#agent/mcp/elicitation.ts";
import { questionOf } from "#agent/mcp/question.ts";
import { explainFailure } from "#agent/mcp/explain-failure.ts";
import { abortable } from "#lib/concurrency/abortable.ts";
import { cutOff } from "#agent/tools/result.ts";
import type { ToolResult, ToolCall } from "#agent/tools/tool.ts";
import type { KnownTool } from "./tool-lists.ts";
import { type Attempt, callAuthorized } from "../calls/authorized-call.ts";
import { readInBackground } from "./read-tools.ts";
import { markReachable, type ToolsetRow } from "../store.ts";
import { type CallCredentials, peerOf } from "../calls/call-credentials.ts";

type CalledTool = Pick<KnownTool, "original" | "inputSchema" | "readsResources">;

interface Caller {
  endUserId: string | null;
  call: ToolCall;
  elicitation?: Elicitation | undefined;
  /** Time in seconds that a person has for a question of the server, with elicitation `person`. */
  questionSeconds?: number | undefined;
}

/** Time in seconds that a person has for a question, if the config sets none. */
const questionSecondsDefault = 900;
/** Maximum number of questions in one call. */
const questionsMax = 10;
/** Longest time that a Node timer supports. */
const timerMaxMs = 2 ** 31 - 1;

export async function callMcp(
  app: App,
  row: ToolsetRow,
  tool: CalledTool,
  caller: Caller,
): Promise<ToolResult> {
  return callAuthorized(app, row, caller, (way) => ask(app, row, tool, { ...caller, way }));
}

async function ask(
  app: App,
  row: ToolsetRow,
  tool: CalledTool,
  {
    endUserId,
    way,
    call,
    elicitation,
    questionSeconds = questionSecondsDefault,
  }: Caller & { way: CallCredentials },
): Promise<Attempt> {
  const late = new AbortController();
  const timer = new PausableTimer(call.timeoutMs, () => late.abort());
  const timeout = late.signal;
  const signal = AbortSignal.any([call.signal, timeout]);
  const asking =
    elicitation === "person"
      ? {
          ask: askerOf(call, { hide: way.hide, seconds: questionSeconds, timer }),
          longestMs: questionsMax * questionSeconds * 1000,
        }
      : undefined;
  const readAgain = () => void readInBackground(app, row, endUserId);
  try {
    const answer = await abortable(
      mcpConnections(app).use(peerOf(row, endUserId, way, readAgain, elicitation), (connection) =>
        answerBy(connection, tool, { call, signal, hide: way.hide, asking }),
      ),
      signal,
    );
    if (row.status !== "ready") await markReachable(app.db, row);
    if (!answer.isOk && isUnknownTool(answer.text)) readAgain();
    return { answer };
  } catch (error) {
    call.signal.throwIfAborted();
    if (timeout.aborted)
      return { answer: { isOk: false, text: `The tool did not respond within ${call.timeoutMs / 1000} s.` } };
    const { kind, text, refusal } = explainFailure(error, way.hide);
    if (kind === "refused" && isUnknownTool(text)) readAgain();
    const words = kind === "refused" ? "The server refused" : "The tool can't be reached";
    return { answer: { isOk: false, text: `${words}: ${text}` }, refusal };
  } finally {
    timer.stop();
  }
}

/**
 * Returns the function that passes the server's questions to a person. The call's timeout is paused during a question.
 */
function askerOf(
  call: ToolCall,
  { hide, seconds, timer }: { hide: (text: string) => string; seconds: number; timer: PausableTimer },
): Asker {
  let questions = 0;
  return async (params, signal) => {
    questions += 1;
    const question = questions > questionsMax ? undefined : questionOf(params, hide);
    if (!question) return { action: "decline" };
    timer.pause();
    try {
      const { action, content } = await call.ask({ ...question, seconds, signal });
      return action === "accept" ? { action, content: content as AnswerContent } : { action };
    } finally {
      timer.resume();
    }
  };
}

type AnswerContent = NonNullable<Awaited<ReturnType<Asker>>["content"]>;

/** Maximum number of resources in a list. */
const listedMax = 200;

async function answerBy(
  connection: McpConnection,
  { original, inputSchema, readsResources }: CalledTool,
  {
    call,
    signal,
    hide,
    asking,
  }: {
    call: ToolCall;
    signal: AbortSignal;
    hide: (text: string) => string;
    asking: { ask: Asker; longestMs: number } | undefined;
  },
): Promise<ToolResult> {
  const { timeoutMs, headers, values } = call;
  if (!readsResources) {
    // The library's timeout includes the time of questions. So only the signal ends a call that may send a question.
    const options = {
      timeoutMs: Math.min(timeoutMs + (asking?.longestMs ?? 0), timerMaxMs),
      signal,
      headers,
      ask: asking?.ask,
    };
    return toToolResult(await connection.call({ name: original, inputSchema }, values, options), hide);
  }
  if (typeof values["uri"] === "string")
    return toResourceResult(await connection.readResource(values["uri"], { timeoutMs, signal }), hide);
  const resources = await connection.resources({ timeoutMs, signal });
  const lines = resources
    .slice(0, listedMax)
    .map(({ uri, name, description, mimeType }) => JSON.stringify({ uri, name, description, mimeType }));
  const more = resources.length > listedMax ? [`(${resources.length - listedMax} more)`] : [];
  const text = lines.length === 0 ? "The server lists no resources." : [...lines, ...more].join("\n");
  return { isOk: true, text: cutOff(hide(text)) };
}

/**
 * Returns true if an error's text means an unknown tool. The text differs between servers. A wrong match only causes an
 * unneeded read of the list.
 */
function isUnknownTool(text: string): boolean {
  return /-3260[12]|unknown tool|tool\b.{0,200}\bnot found|not found/is.test(text.slice(0, 500));
}
