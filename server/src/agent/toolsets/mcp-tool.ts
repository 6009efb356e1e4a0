/** One call of a tool of a server. */
import type { App } from "#app.ts";
import { answerOf } from "../mcp/answer.ts";
import { mcpConnections } from "../mcp/connections.ts";
import { whyNot } from "../mcp/why.ts";
import { unlessAborted } from "../mcp/within.ts";
import type { ToolAnswer, ToolCall } from "../tools/tool.ts";
import type { KnownTool } from "./known.ts";
import { type Attempt, letIn } from "./let-in.ts";
import { readSoon } from "./read-tools.ts";
import type { ToolsetRow } from "./store.ts";
import { type Entry, peerOf } from "./way-in.ts";

type Needed = Pick<KnownTool, "original" | "inputSchema">;

export async function callMcp(
  app: App,
  row: ToolsetRow,
  tool: Needed,
  endUserId: string | null,
  call: ToolCall,
): Promise<ToolAnswer> {
  return letIn(app, row, { endUserId, call }, (way) => ask(app, row, tool, { endUserId, way, call }));
}

async function ask(
  app: App,
  row: ToolsetRow,
  { original, inputSchema }: Needed,
  { endUserId, way, call }: { endUserId: string | null; way: Entry; call: ToolCall },
): Promise<Attempt> {
  const timeout = AbortSignal.timeout(call.timeoutMs);
  const signal = AbortSignal.any([call.signal, timeout]);
  const readAgain = () => void readSoon(app, row, endUserId);
  try {
    const result = await unlessAborted(
      signal,
      mcpConnections(app).use(peerOf(row, endUserId, way, readAgain), (connection) =>
        connection.call({ name: original, inputSchema }, call.values, {
          timeoutMs: call.timeoutMs,
          signal,
          headers: call.headers,
        }),
      ),
    );
    const answer = answerOf(result, way.hide);
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

/** Servers say it in words of their own; a list that is read once too often costs nothing. */
function isUnknownTool(text: string): boolean {
  return /-3260[12]|unknown tool|tool\b.{0,200}\bnot found|not found/is.test(text.slice(0, 500));
}
