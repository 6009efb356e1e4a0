/**
 * Refreshes access tokens. Refresh tokens often work only once. So only one of several concurrent callers, in any
 * process, sends the refresh request. The others wait for the stored result. The lock is a lease: a time in the row,
 * without an open transaction. So a slow provider occupies no database connection, and the lease of a crashed process
 * expires within seconds.
 */
import { setTimeout as sleep } from "node:timers/promises";
import type { App } from "#app.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { SingleFlight } from "#lib/concurrency/single-flight.ts";
import { SignInFault } from "./sign-in-fault.ts";
import { queueRevocations } from "../revocation.ts";
import { openTokens, sealTokens } from "../token-encryption.ts";
import {
  type ConnectionRow,
  releaseRefreshLease,
  findConnection,
  deleteRegisteredClient,
  acquireRefreshLease,
} from "../store.ts";
import { refreshTokens } from "./tokens.ts";

type Needs = Pick<App, "db" | "config" | "secrets" | "clock">;

export class FreshToken {
  /** Id of the connection. Another sign-in creates a connection with another id. */
  readonly connection: string;
  readonly token: string;

  constructor(connection: string, token: string) {
    this.connection = connection;
    this.token = token;
  }
}

export type RefreshOutcome = FreshToken | "needs_reauth" | SignInFault;

/** Time before its expiry at which a token counts as stale, because a call takes time and clocks differ. */
const earlyMs = 60_000;
/** Duration of the lease in milliseconds. The lease lasts longer than the deadline of one request. */
const lockMs = 20_000;
const lookMs = 100;

const flights = new WeakMap<App["db"], SingleFlight<RefreshOutcome>>();

export async function refreshIfStale(app: Needs, row: ConnectionRow): Promise<RefreshOutcome> {
  if (!isStale(app, row)) return tokenOf(app, row);
  const flight = flights.get(app.db) ?? new SingleFlight<RefreshOutcome>();
  flights.set(app.db, flight);
  return flight.run(row.id, () => untilFresh(app, row));
}

async function untilFresh(app: Needs, { toolset_id, end_user_id }: ConnectionRow): Promise<RefreshOutcome> {
  const deadline = performance.now() + lockMs + 2 * lookMs;
  for (;;) {
    const row = await findConnection(app.db, toolset_id, end_user_id);
    if (!row || row.status === "needs_reauth") return "needs_reauth";
    if (!isStale(app, row)) return tokenOf(app, row);
    const now = app.clock.now();
    const taken = await acquireRefreshLease(app.db, row.id, {
      now,
      staleAt: new Date(now.getTime() + earlyMs),
      until: new Date(now.getTime() + lockMs),
    });
    if (taken) return runRefresh(app, taken);
    if (performance.now() > deadline) return new SignInFault("the refresh of the token takes too long");
    await sleep(lookMs);
  }
}

/** Sends the refresh request and stores the result. The caller holds the lease. */
async function runRefresh(app: Needs, row: ConnectionRow): Promise<RefreshOutcome> {
  const held = openTokens(app, row.id, row.sealed);
  const { client, refresh_token } = held;
  if (refresh_token === null) return unrefreshable(app, row);
  try {
    await passKillPoint("agent.refresh.begins");
    const tokens = await refreshTokens(app, { ...row, client }, refresh_token);
    await passKillPoint("agent.refresh.answered");
    const sealed = sealTokens(app, row.id, {
      access_token: tokens.access_token,
      // If the response has no new refresh token, the old token stays valid (RFC 6749, section 6).
      refresh_token: tokens.refresh_token ?? refresh_token,
      client,
    });
    const { lifeSeconds } = tokens;
    const expires_at = lifeSeconds === null ? null : new Date(app.clock.now().getTime() + lifeSeconds * 1000);
    const scope = tokens.scope ?? row.scope;
    const isKept = await releaseRefreshLease(app.db, row, { sealed, expires_at, scope });
    // The connection was deleted during the request, so the new tokens are revoked as well.
    if (!isKept) await queueRevocations(app.db, [{ ...row, sealed }]);
    return isKept ? new FreshToken(row.id, tokens.access_token) : "needs_reauth";
  } catch (error) {
    if (!(error instanceof SignInFault)) throw error;
    return handleRefreshFault(app, row, error);
  }
}

async function handleRefreshFault(
  app: Needs,
  row: ConnectionRow,
  fault: SignInFault,
): Promise<RefreshOutcome> {
  const { client } = openTokens(app, row.id, row.sealed);
  if (fault.code === "invalid_client") await deleteRegisteredClient(app.db, row.toolset_id, client.client_id);
  if (fault.code === "invalid_grant" || fault.code === "invalid_client") {
    await releaseRefreshLease(app.db, row, { status: "needs_reauth" });
    return "needs_reauth";
  }
  await releaseRefreshLease(app.db, row, {});
  return isOver(app, row) ? fault : tokenOf(app, row);
}

async function unrefreshable(app: Needs, row: ConnectionRow): Promise<RefreshOutcome> {
  if (!isOver(app, row)) {
    await releaseRefreshLease(app.db, row, {});
    return tokenOf(app, row);
  }
  await releaseRefreshLease(app.db, row, { status: "needs_reauth" });
  return "needs_reauth";
}

function tokenOf(app: Needs, row: ConnectionRow): FreshToken {
  return new FreshToken(row.id, openTokens(app, row.id, row.sealed).access_token);
}

function isStale({ clock }: Needs, { expires_at }: ConnectionRow): boolean {
  return expires_at !== null && expires_at.getTime() <= clock.now().getTime() + earlyMs;
}

function isOver({ clock }: Needs, { expires_at }: ConnectionRow): boolean {
  return expires_at !== null && expires_at <= clock.now();
}
