/**
 * One server per host. Two on one data directory would both own its machines, so a server holds an advisory lock in
 * PostgreSQL for as long as it lives: it needs no cleaning up after a kill -9, and no clock. The lock belongs to one
 * connection; when PostgreSQL restarts, the server takes it again, and ends if another was faster.
 */
import { createHash } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";
import { clientOptions, type Connection } from "./db.ts";

export interface SoleServer {
  release(): Promise<void>;
}

/**
 * Takes the lock of a host, or answers undefined where another process has it. `onLost` is called at most once, when
 * another process took it while PostgreSQL was away.
 */
export async function becomeSoleServer(
  connection: Connection,
  hostId: string,
  onLost: () => void,
): Promise<SoleServer | undefined> {
  const lock = lockNumber(hostId);
  let isReleased = false;
  let client: pg.Client | undefined;

  const take = async (): Promise<boolean> => {
    const fresh = new pg.Client({
      ...clientOptions(connection),
      keepAlive: true,
      connectionTimeoutMillis: 5_000,
    });
    fresh.on("error", () => {});
    try {
      await fresh.connect();
      const { rows } = await fresh.query<{ taken: boolean }>("select pg_try_advisory_lock($1) as taken", [
        lock,
      ]);
      if (!rows[0]?.taken || isReleased) {
        await fresh.end();
        return false;
      }
    } catch (error) {
      await fresh.end().catch(() => {});
      throw error;
    }
    client = fresh;
    fresh.once("end", () => void retake());
    return true;
  };
  const retake = async (): Promise<void> => {
    while (!isReleased) {
      try {
        if (!(await take()) && !isReleased) onLost();
        return;
      } catch {
        await sleep(500, undefined, { ref: false });
      }
    }
  };

  if (!(await take())) return undefined;
  return {
    release: async () => {
      isReleased = true;
      await client?.end().catch(() => {});
    },
  };
}

/** 53 bits of a hash: an advisory lock is a number, and JavaScript's are exact to there. */
function lockNumber(hostId: string): number {
  return Number.parseInt(
    createHash("sha256").update(`kontor server ${hostId}`).digest("hex").slice(0, 13),
    16,
  );
}
