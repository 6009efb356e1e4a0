/**
 * Checks whether an MCP server's tools are known and usable now. An unreachable server delays an agent by a few seconds
 * at most.
 */
import type { App } from "#app.ts";
import { requireNewSignIn } from "#agent/oauth/access.ts";
import { mcpConnections } from "#agent/mcp/connections.ts";
import type { Elicitation } from "#agent/mcp/elicitation.ts";
import { explainFailure } from "#agent/mcp/explain-failure.ts";
import { withDeadline } from "#agent/mcp/with-deadline.ts";
import type { Tool } from "#agent/tools/tool.ts";
import { knownTools } from "./tool-lists.ts";
import { readInBackground, readTools } from "./read-tools.ts";
import { requestSignIn } from "../calls/sign-in.ts";
import type { ToolsetRow } from "../store.ts";
import { peerOf, resolveCredentials } from "../calls/call-credentials.ts";

/** Age after which tools are read again at their next use. */
const staleAfterMs = 60 * 60 * 1000;
/** Longest wait for the first read of a server's tools, in milliseconds. */
const firstReadMs = 5_000;
/** Longest wait for a ping of a required server, in milliseconds. The ping precedes each step. */
const pingMs = 2_000;

/** Returns the row with its tools. Reads unknown tools first, and reads old tools again in the background. */
export async function readIfStale(app: App, row: ToolsetRow, endUserId: string | null): Promise<ToolsetRow> {
  const readAt = row.last_refreshed_at;
  if (readAt === null) {
    const begun = readInBackground(app, row, endUserId);
    const read = begun && (await withDeadline(firstReadMs, begun).catch(() => undefined));
    return (read as ToolsetRow | undefined) ?? row;
  }
  if (row.status !== "ready" || app.clock.now().getTime() - readAt.getTime() > staleAfterMs)
    void readInBackground(app, row, endUserId);
  return row;
}

/**
 * Returns the reason why a server is not usable, or undefined if it seems usable. Pings a required server over its kept
 * connection.
 */
export async function findUnavailability(
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
  const way = await resolveCredentials(app, row, endUserId);
  // The server counts as usable, because a call asks the end user to sign in.
  if (way.kind === "auth_required") return undefined;
  if (way.kind === "unavailable") return way.why;
  const peer = peerOf(row, endUserId, way, () => void readInBackground(app, row, endUserId), elicitation);
  try {
    await mcpConnections(app).use(peer, (connection) => connection.ping(pingMs), { isHarmless: true });
    return undefined;
  } catch (error) {
    const { kind, text } = explainFailure(error, way.hide);
    // The server counts as usable, because a call refreshes the token or asks the end user to sign in.
    return kind === "auth_required" && row.auth_type === "oauth" ? undefined : text;
  }
}

/** Returns a tool that stands for the tools of a server. The server needs a sign-in before its tools can be read. */
export function signInTool(app: App, row: ToolsetRow, endUserId: string | null): Tool {
  return {
    name: `${row.name}__sign_in`,
    description: `Connects to ${row.name}. The other tools are known after a sign-in: call this tool first.`,
    parameters: { type: "object", properties: {} },
    toolsetId: row.id,
    policy: "allow",
    isRepeatable: true,
    call: async (call) => {
      const way = await resolveCredentials(app, row, endUserId);
      if (way.kind !== "open") return requestSignIn(app, row, endUserId, way, call);
      const read = await readTools(app, row, endUserId);
      const names = read ? knownTools(read).map(({ name }) => `${row.name}__${name}`) : [];
      if (names.length > 0)
        return {
          isOk: true,
          text: `Connected. From your next step on you have these tools: ${names.join(", ")}`,
        };
      if (read?.status === "auth_required")
        return requestSignIn(app, row, endUserId, requireNewSignIn(row, endUserId, way.connection), call);
      return {
        isOk: false,
        text: `The tools could not be read: ${read?.last_error ?? "the toolset has no tools"}.`,
      };
    },
  };
}
