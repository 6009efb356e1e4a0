/**
 * Checks whether an MCP server's tools are known and usable now. An unreachable server delays an agent for seconds at
 * most.
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

/** Tools older than this are read again at the next use. */
const staleAfterMs = 60 * 60 * 1000;
/** Longest wait for the first read of a server's tools. */
const firstReadMs = 5_000;
/** Longest wait for a ping of a required server, before each step. */
const pingMs = 2_000;

/** Returns the row with its tools. Reads the tools first if they are unknown, and in the background if they are old. */
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

/** Returns undefined if the server seems usable. Pings a required server over its kept connection. */
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
  // A call asks the end user to sign in.
  if (way.kind === "auth_required") return undefined;
  if (way.kind === "unavailable") return way.why;
  const peer = peerOf(row, endUserId, way, () => void readInBackground(app, row, endUserId), elicitation);
  try {
    await mcpConnections(app).use(peer, (connection) => connection.ping(pingMs), { isHarmless: true });
    return undefined;
  } catch (error) {
    const { kind, text } = explainFailure(error, way.hide);
    // A call refreshes the token, or asks the end user to sign in.
    return kind === "auth_required" && row.auth_type === "oauth" ? undefined : text;
  }
}

/** Placeholder for the tools of a server that needs a sign-in before its tools can be read. */
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
