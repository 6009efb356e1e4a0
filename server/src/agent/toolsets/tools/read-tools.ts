/**
 * Reads a server's tools and stores the tools. The result is stored only if the toolset's server and credentials are
 * still the same. After a failure, the status contains the cause, and the tools of the last read stay.
 */
import { createHash } from "node:crypto";
import type { App } from "#app.ts";
import { SingleFlight } from "#lib/concurrency/single-flight.ts";
import type { Refusal } from "#agent/oauth/provider/refusal.ts";
import { mcpConnections } from "#agent/mcp/connections.ts";
import { boundTools, type ToolList, withResourceTool } from "#agent/mcp/tool-list.ts";
import { ownedFetch } from "#agent/models/fetch.ts";
import { openMcp } from "#agent/mcp/open.ts";
import { explainFailure } from "#agent/mcp/explain-failure.ts";
import { storableJson, storableText } from "#agent/storable.ts";
import { changeToolset, lockToolset, type ToolsetChange, type ToolsetRow } from "../store.ts";
import { type CredentialsResult, resolveCredentials } from "../calls/call-credentials.ts";

const opensWithinMs = 10_000;
const listsWithinMs = 10_000;
const answerMaxBytes = 4 * 1024 ** 2;
/** Maximum size of all pages of a list together. */
const allMaxBytes = 16 * 1024 ** 2;
const shownLeftOut = 3;

const reading = new SingleFlight<ToolsetRow | undefined>();

/**
 * Reads the tools and stores them. Returns the updated row, or undefined if the toolset was deleted. Concurrent callers
 * share one read.
 */
export function readTools(
  app: App,
  row: ToolsetRow,
  endUserId: string | null = null,
): Promise<ToolsetRow | undefined> {
  return reading.run(JSON.stringify([row.id, endUserId, sourceKeyOf(row)]), async () =>
    keep(app, row, await outcomeOf(app, row, endUserId)),
  );
}

/** Returns a key of the server and the credentials in a row. A result that was read with another key is not stored. */
function sourceKeyOf({ url, auth_type, auth_header_name, auth_secret_sealed }: ToolsetRow): string {
  const asked = JSON.stringify([url, auth_type, auth_header_name, auth_secret_sealed?.toString("base64")]);
  return createHash("sha256").update(asked).digest("base64");
}

const again = new WeakMap<App["db"], Map<string, number>>();
const againAfterMs = 30_000;

/**
 * Reads the tools in the background. After a read, no other read starts for a while, even if the read failed. Returns
 * undefined if no read was started.
 */
export function readInBackground(
  app: App,
  row: ToolsetRow,
  endUserId: string | null,
): Promise<unknown> | undefined {
  const known = again.get(app.db) ?? new Map<string, number>();
  again.set(app.db, known);
  const now = performance.now();
  for (const [id, untilMs] of known) if (untilMs <= now) known.delete(id);
  if (known.has(row.id)) return undefined;
  known.set(row.id, now + againAfterMs);
  return readTools(app, row, endUserId).catch((error: unknown) => {
    app.log.warn({ error, toolset: row.id }, "could not read the tools of a toolset");
  });
}

async function outcomeOf(app: App, row: ToolsetRow, endUserId: string | null): Promise<ToolsetChange> {
  const way = await resolveCredentials(app, row, endUserId);
  const { change, refusal } = await readBy(app, row, way);
  const next = refusal && way.kind === "open" ? await way.handleRefusal(refusal) : undefined;
  return next ? (await readBy(app, row, next)).change : change;
}

async function readBy(
  app: App,
  row: ToolsetRow,
  way: CredentialsResult,
): Promise<{ change: ToolsetChange; refusal?: Refusal | undefined }> {
  if (way.kind !== "open") {
    const why = way.kind === "unavailable" ? way.why : "the user has to sign in first";
    return { change: { status: "auth_required", last_error: why } };
  }
  try {
    const fetch = ownedFetch(mcpConnections(app).fetch, row.workspace_id);
    const connection = await openMcp(way.address, {
      fetch,
      timeoutMs: opensWithinMs,
      bounds: { answerMaxBytes, allMaxBytes },
      // The client offers elicitation, because some servers list certain tools only to such a client.
      elicitation: "decline",
    });
    try {
      const listed = await connection.tools(listsWithinMs);
      const shown = listed.map((tool) => hiddenIn(tool, way.hide));
      const kept = await boundTools(row.workspace_id, shown);
      return { change: ready(app, connection.hasResources ? withResourceTool(kept) : kept) };
    } finally {
      await connection.close();
    }
  } catch (error) {
    const { kind, text, refusal } = explainFailure(error, way.hide);
    const status = kind === "auth_required" ? "auth_required" : "unreachable";
    return { change: { status, last_error: storableText(text) }, refusal };
  }
}

/** Blanks the credentials in all texts of the value, because a server may repeat them. */
function hiddenIn<T>(value: T, hide: (text: string) => string): T {
  const within = (one: unknown): unknown => {
    if (typeof one === "string") return hide(one);
    if (Array.isArray(one)) return one.map(within);
    if (typeof one !== "object" || one === null) return one;
    return Object.fromEntries(Object.entries(one).map(([key, inner]) => [hide(key), within(inner)]));
  };
  return within(value) as T;
}

function ready(app: App, { tools, leftOut }: ToolList): ToolsetChange {
  const shown = leftOut.slice(0, shownLeftOut).map(({ name, why }) => `${name} (${why})`);
  const more = leftOut.length > shown.length ? ` and ${leftOut.length - shown.length} more` : "";
  return {
    status: "ready",
    tools_cached: storableJson(tools),
    last_refreshed_at: app.clock.now(),
    last_error: leftOut.length === 0 ? null : storableText(`left out: ${shown.join(", ")}${more}`),
  };
}

async function keep(app: App, asked: ToolsetRow, change: ToolsetChange): Promise<ToolsetRow | undefined> {
  return app.db.transaction().execute(async (tx) => {
    const row = await lockToolset(tx, asked.id, [asked.workspace_id]);
    if (!row || sourceKeyOf(row) !== sourceKeyOf(asked)) return row;
    // If each end user signs in, one missing sign-in does not make the toolset unusable.
    if (change.status === "auth_required" && row.last_refreshed_at && row.oauth_per_end_user) return row;
    return changeToolset(tx, row.id, change);
  });
}
