/** Whether a server's tools are known and can be used now. A server that is away keeps no agent waiting for long. */
import type { App } from "#app.ts";
import { askAnew } from "#agent/oauth/access.ts";
import { mcpConnections } from "#agent/mcp/connections.ts";
import type { Elicitation } from "#agent/mcp/elicitation.ts";
import { whyNot } from "#agent/mcp/why.ts";
import { within } from "#agent/mcp/within.ts";
import type { Tool } from "#agent/tools/tool.ts";
import { knownTools } from "./tool-lists.ts";
import { readSoon, readTools } from "./read-tools.ts";
import { toldToSignIn } from "../calls/sign-in.ts";
import type { ToolsetRow } from "../store.ts";
import { peerOf, wayIn } from "../calls/call-credentials.ts";

/** What nobody read for so long is read again when it is next used. */
const staleAfterMs = 60 * 60 * 1000;
/** An agent waits for a server whose tools were never read. */
const firstReadMs = 5_000;
/** And for one that it can't do without, each time that it asks for its tools. */
const pingMs = 2_000;

/** The row, read anew where nothing is known yet; where it is only old, in the background. */
export async function upToDate(app: App, row: ToolsetRow, endUserId: string | null): Promise<ToolsetRow> {
  const readAt = row.last_refreshed_at;
  if (readAt === null) {
    const begun = readSoon(app, row, endUserId);
    const read = begun && (await within(firstReadMs, begun).catch(() => undefined));
    return (read as ToolsetRow | undefined) ?? row;
  }
  if (row.status !== "ready" || app.clock.now().getTime() - readAt.getTime() > staleAfterMs)
    void readSoon(app, row, endUserId);
  return row;
}

/** Undefined where it can be used, as far as is known. One that is required is asked, over the connection that is kept. */
export async function whyUnavailable(
  app: App,
  row: ToolsetRow,
  {
    endUserId,
    isRequired,
    elicitation,
  }: { endUserId: string | null; isRequired: boolean; elicitation: Elicitation | undefined },
): Promise<string | undefined> {
  if (!isRequired)
    return row.last_refreshed_at === null && row.auth_type !== "oauth"
      ? (row.last_error ?? undefined)
      : undefined;
  const way = await wayIn(app, row, endUserId);
  // Whoever can sign in is asked to by a call.
  if (way.kind === "auth_required") return undefined;
  if (way.kind === "unavailable") return way.why;
  const peer = peerOf(row, endUserId, way, () => void readSoon(app, row, endUserId), elicitation);
  try {
    await mcpConnections(app).use(peer, (connection) => connection.ping(pingMs), { isHarmless: true });
    return undefined;
  } catch (error) {
    const { kind, text } = whyNot(error, way.hide);
    // A call gets a newer token, or says where to sign in.
    return kind === "auth_required" && row.auth_type === "oauth" ? undefined : text;
  }
}

/** In place of tools that nobody could read yet, because nobody signed in. */
export function signInTool(app: App, row: ToolsetRow, endUserId: string | null): Tool {
  return {
    name: `${row.name}__sign_in`,
    description: `Connects to ${row.name}. Its tools are known once somebody has signed in: call this first.`,
    parameters: { type: "object", properties: {} },
    toolsetId: row.id,
    policy: "allow",
    isRepeatable: true,
    call: async (call) => {
      const way = await wayIn(app, row, endUserId);
      if (way.kind !== "open") return toldToSignIn(app, row, endUserId, way, call);
      const read = await readTools(app, row, endUserId);
      const names = read ? knownTools(read).map(({ name }) => `${row.name}__${name}`) : [];
      if (names.length > 0)
        return { isOk: true, text: `Connected. From your next step on you have: ${names.join(", ")}` };
      if (read?.status === "auth_required")
        return toldToSignIn(app, row, endUserId, askAnew(row, endUserId, way.connection), call);
      return {
        isOk: false,
        text: `Nothing could be read: ${read?.last_error ?? "the toolset has no tools"}.`,
      };
    },
  };
}
