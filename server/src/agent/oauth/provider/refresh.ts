/**
 * Newer tokens in time. Refresh tokens mostly serve once: of all who need a newer token at the same time, in whichever
 * process, one asks, and the others wait for what it stores. The lock is a time in the row and no transaction, so that a
 * provider that is slow holds no connection to the database, and a process that dies holds it for seconds.
 */
import { setTimeout as sleep } from "node:timers/promises";
import type { App } from "#app.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { SingleFlight } from "#lib/concurrency/single-flight.ts";
import { SignInFault } from "./sign-in-fault.ts";
import { revokeLater } from "../forget.ts";
import { openTokens, sealTokens } from "../sealed.ts";
import { type ConnectionRow, endRefresh, findConnection, forgetRegistered, takeRefresh } from "../store.ts";
import { refreshTokens } from "./tokens.ts";

type Needs = Pick<App, "db" | "config" | "secrets" | "clock">;

export class Refreshed {
  /** Whose it is: another sign-in makes another. */
  readonly connection: string;
  readonly token: string;

  constructor(connection: string, token: string) {
    this.connection = connection;
    this.token = token;
  }
}

export type Outcome = Refreshed | "needs_reauth" | SignInFault;

/** Before its end: a call takes its time, and clocks differ. */
const earlyMs = 60_000;
/** Longer than one request may take. */
const lockMs = 20_000;
const lookMs = 100;

const flights = new WeakMap<App["db"], SingleFlight<Outcome>>();

export async function refresh(app: Needs, row: ConnectionRow): Promise<Outcome> {
  if (!isStale(app, row)) return tokenOf(app, row);
  const flight = flights.get(app.db) ?? new SingleFlight<Outcome>();
  flights.set(app.db, flight);
  return flight.run(row.id, () => untilFresh(app, row));
}

async function untilFresh(app: Needs, { toolset_id, end_user_id }: ConnectionRow): Promise<Outcome> {
  const deadline = performance.now() + lockMs + 2 * lookMs;
  for (;;) {
    const row = await findConnection(app.db, toolset_id, end_user_id);
    if (!row || row.status === "needs_reauth") return "needs_reauth";
    if (!isStale(app, row)) return tokenOf(app, row);
    const now = app.clock.now();
    const taken = await takeRefresh(app.db, row.id, {
      now,
      staleAt: new Date(now.getTime() + earlyMs),
      until: new Date(now.getTime() + lockMs),
    });
    if (taken) return carryOut(app, taken);
    if (performance.now() > deadline) return new SignInFault("a newer token takes too long");
    await sleep(lookMs);
  }
}

/** By whoever holds the lock. */
async function carryOut(app: Needs, row: ConnectionRow): Promise<Outcome> {
  const held = openTokens(app, row.id, row.sealed);
  const { client, refresh_token } = held;
  if (refresh_token === null) return unrefreshable(app, row);
  try {
    await passKillPoint("agent.refresh.begins");
    const tokens = await refreshTokens(app, { ...row, client }, refresh_token);
    await passKillPoint("agent.refresh.answered");
    const sealed = sealTokens(app, row.id, {
      access_token: tokens.access_token,
      // One that is not handed out anew stays good (RFC 6749, 6).
      refresh_token: tokens.refresh_token ?? refresh_token,
      client,
    });
    const { lifeSeconds } = tokens;
    const expires_at = lifeSeconds === null ? null : new Date(app.clock.now().getTime() + lifeSeconds * 1000);
    const scope = tokens.scope ?? row.scope;
    const isKept = await endRefresh(app.db, row, { sealed, expires_at, scope });
    // Whoever disconnected meanwhile meant these as well.
    if (!isKept) await revokeLater(app.db, [{ ...row, sealed }]);
    return isKept ? new Refreshed(row.id, tokens.access_token) : "needs_reauth";
  } catch (error) {
    if (!(error instanceof SignInFault)) throw error;
    return failed(app, row, error);
  }
}

async function failed(app: Needs, row: ConnectionRow, fault: SignInFault): Promise<Outcome> {
  const { client } = openTokens(app, row.id, row.sealed);
  if (fault.code === "invalid_client") await forgetRegistered(app.db, row.toolset_id, client.client_id);
  if (fault.code === "invalid_grant" || fault.code === "invalid_client") {
    await endRefresh(app.db, row, { status: "needs_reauth" });
    return "needs_reauth";
  }
  await endRefresh(app.db, row, {});
  return isOver(app, row) ? fault : tokenOf(app, row);
}

async function unrefreshable(app: Needs, row: ConnectionRow): Promise<Outcome> {
  if (!isOver(app, row)) {
    await endRefresh(app.db, row, {});
    return tokenOf(app, row);
  }
  await endRefresh(app.db, row, { status: "needs_reauth" });
  return "needs_reauth";
}

function tokenOf(app: Needs, row: ConnectionRow): Refreshed {
  return new Refreshed(row.id, openTokens(app, row.id, row.sealed).access_token);
}

function isStale({ clock }: Needs, { expires_at }: ConnectionRow): boolean {
  return expires_at !== null && expires_at.getTime() <= clock.now().getTime() + earlyMs;
}

function isOver({ clock }: Needs, { expires_at }: ConnectionRow): boolean {
  return expires_at !== null && expires_at <= clock.now();
}
