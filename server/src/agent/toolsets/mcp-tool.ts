/** One call of a tool of a server. */
import type { App } from "#app.ts";
import { answerOf, resourceAnswer } from "../mcp/answer.ts";
import type { McpConnection } from "../mcp/connection.ts";
import { mcpConnections } from "../mcp/connections.ts";
import type { Elicitation } from "../mcp/elicitation.ts";
import { whyNot } from "../mcp/why.ts";
import { unlessAborted } from "../mcp/within.ts";
import { cutOff } from "../tools/result.ts";
import type { ToolAnswer, ToolCall } from "../tools/tool.ts";
import type { KnownTool } from "./known.ts";
import { type Attempt, letIn } from "./let-in.ts";
import { readSoon } from "./read-tools.ts";
import { markReachable, type ToolsetRow } from "./store.ts";
import { type Entry, peerOf } from "./way-in.ts";

type Needed = Pick<KnownTool, "original" | "inputSchema" | "readsResources">;

interface Caller {
  endUserId: string | null;
  call: ToolCall;
  elicitation?: Elicitation | undefined;
}

export async function callMcp(app: App, row: ToolsetRow, tool: Needed, caller: Caller): Promise<ToolAnswer> {
  return letIn(app, row, caller, (way) => ask(app, row, tool, { ...caller, way }));
}

async function ask(
  app: App,
  row: ToolsetRow,
  tool: Needed,
  { endUserId, way, call, elicitation }: Caller & { way: Entry },
): Promise<Attempt> {
  const timeout = AbortSignal.timeout(call.timeoutMs);
  const signal = AbortSignal.any([call.signal, timeout]);
  const readAgain = () => void readSoon(app, row, endUserId);
  try {
    const answer = await unlessAborted(
      signal,
      mcpConnections(app).use(peerOf(row, endUserId, way, readAgain, elicitation), (connection) =>
        answerBy(connection, tool, { call, signal, hide: way.hide }),
      ),
    );
    if (row.status !== "ready") await markReachable(app.db, row);
    if (!answer.isOk && isUnknownTool(answer.text)) readAgain();
    return { answer };
  } catch (error) {
    call.signal.throwIfAborted();
    if (timeout.aborted)
      return { answer: { isOk: false, text: `The tool did not answer within ${call.timeoutMs / 1000} s.` } };
    const { kind, text, refusal } = whyNot(error, way.hide);
    if (kind === "refused" && isUnknownTool(text)) readAgain();
    const words = kind === "refused" ? "The server refused" : "The tool can't be reached";
    return { answer: { isOk: false, text: `${words}: ${text}` }, refusal };
  }
}

/** Maximum of resources in a list. */
const listedMax = 200;

async function answerBy(
  connection: McpConnection,
  { original, inputSchema, readsResources }: Needed,
  { call, signal, hide }: { call: ToolCall; signal: AbortSignal; hide: (text: string) => string },
): Promise<ToolAnswer> {
  const { timeoutMs, headers, values } = call;
  if (!readsResources) {
    const options = { timeoutMs, signal, headers };
    return answerOf(await connection.call({ name: original, inputSchema }, values, options), hide);
  }
  if (typeof values["uri"] === "string")
    return resourceAnswer(await connection.readResource(values["uri"], { timeoutMs, signal }), hide);
  const resources = await connection.resources({ timeoutMs, signal });
  const lines = resources
    .slice(0, listedMax)
    .map(({ uri, name, description, mimeType }) => JSON.stringify({ uri, name, description, mimeType }));
  const more = resources.length > listedMax ? [`(${resources.length - listedMax} more)`] : [];
  const text = lines.length === 0 ? "The server lists no resources." : [...lines, ...more].join("\n");
  return { isOk: true, text: cutOff(hide(text)) };
}

/** Servers say it in words of their own; a list that is read once too often costs nothing. */
function isUnknownTool(text: string): boolean {
  return /-3260[12]|unknown tool|tool\b.{0,200}\bnot found|not found/is.test(text.slice(0, 500));
}
