/** One call of a tool of a server. */
import type { App } from "#app.ts";
import { answerOf } from "../mcp/answer.ts";
import { mcpConnections } from "../mcp/connections.ts";
import { whyNot } from "../mcp/why.ts";
import { unlessAborted } from "../mcp/within.ts";
import type { ToolAnswer, ToolCall } from "../tools/tool.ts";
import type { KnownTool } from "./known.ts";
import { readSoon } from "./read-tools.ts";
import { toldToSignIn } from "./sign-in.ts";
import type { ToolsetRow } from "./store.ts";
import { type Entry, peerOf, wayIn } from "./way-in.ts";

type Needed = Pick<KnownTool, "original" | "inputSchema">;

export async function callMcp(
  app: App,
  row: ToolsetRow,
  tool: Needed,
  endUserId: string | null,
  call: ToolCall,
): Promise<ToolAnswer> {
  const way = await wayIn(app, row, endUserId);
  if (way.kind !== "open") return toldToSignIn(app, row, endUserId, way, call);
  const first = await ask(app, row, tool, { endUserId, way, call });
  if (first !== "not let in") return first;
  // What is not let in was not done.
  const next = await wayIn(app, row, endUserId);
  if (next.kind !== "open") return toldToSignIn(app, row, endUserId, next, call);
  const second = await ask(app, row, tool, { endUserId, way: next, call });
  return second === "not let in" ? { isOk: false, text: `${row.name} does not let the call in.` } : second;
}

async function ask(
  app: App,
  row: ToolsetRow,
  { original, inputSchema }: Needed,
  { endUserId, way, call }: { endUserId: string | null; way: Entry; call: ToolCall },
): Promise<ToolAnswer | "not let in"> {
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
    return answer;
  } catch (error) {
    call.signal.throwIfAborted();
    if (timeout.aborted)
      return { isOk: false, text: `The tool did not answer within ${call.timeoutMs / 1000} s.` };
    const { kind, text } = whyNot(error, way.hide);
    if (kind === "auth_required" && (await way.refused())) return "not let in";
    if (kind === "refused" && isUnknownTool(text)) readAgain();
    const words = kind === "refused" ? "The server refused" : "The tool can't be reached";
    return { isOk: false, text: `${words}: ${text}` };
  }
}

/** Servers say it in words of their own; a list that is read once too often costs nothing. */
function isUnknownTool(text: string): boolean {
  return /-3260[12]|unknown tool|tool\b.{0,200}\bnot found|not found/is.test(text.slice(0, 500));
}
