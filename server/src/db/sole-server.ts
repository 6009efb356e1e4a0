/**
 * Allows one server per host. Two servers on one data directory would both own its machines, so a server holds an
 * advisory lock in PostgreSQL while it lives. The lock needs no clean-up after a kill -9, and no clock. The lock
 * belongs to a connection: after a restart of PostgreSQL the server acquires it again, and ends if another server was
 * faster.
 */
import { createHash } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";
import { clientOptions, type Connection } from "./db.ts";

export interface SoleServer {
  release(): Promise<void>;
}

/**
 * Acquires the lock of a host. Returns undefined if another process has the lock. `onLost` is called at most once, when
 * another process acquired the lock after PostgreSQL was unavailable.
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

/**
 * Returns 53 bits of a hash, because an advisory lock is a number and JavaScript's integers are exact up to 53 bits.
 */
function lockNumber(hostId: string): number {
  return Number.parseInt(
    createHash("sha256").update(`kontor server ${hostId}`).digest("hex").slice(0, 13),
    16,
  );
}
