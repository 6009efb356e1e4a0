/**
 * Files of an upgrade in progress, in `<data>/upgrade/`. Before the first start of the new code, `kontor upgrade`
 * writes a copy of the database there. The command then writes `state.json`, which names both directories of code. The
 * link `<data>/current` decides which code runs. The link leads back to the old code only when the upgrade is rolled
 * back. So an old server that finds `state.json` first restores the database. After a killed upgrade, a server can
 * therefore always start. `state.json` is removed when the new server responds.
 */
import { existsSync, readFileSync, realpathSync, rmSync } from "node:fs";
import { join } from "node:path";
import { writeStateFile } from "#lib/state-file.ts";
import type { Connection } from "./db.ts";
import { restoreDatabase } from "./load.ts";
import { withClient } from "./with-client.ts";

export interface UpgradeState {
  format: 1;
  /** Real paths of the old and the new directory of code. */
  from: string;
  to: string;
  started_at: string;
}

export class UpgradeError extends Error {
  override readonly name = "UpgradeError";
}

export interface UpgradeFiles {
  directory: string;
  state: string;
  /** The database before the upgrade, as `dumpDatabase` writes it. */
  copy: string;
  /** The database of a new server that worked and was rolled back. */
  after: string;
  /** Exists once the new server has begun to work: it runs jobs and accepts requests. */
  worked: string;
}

/** Directory of the running code. Node resolves symlinks of a program's path, so this is a real path. */
const ownCode = join(import.meta.dirname, "../../..");

export function upgradeFiles(dataDir: string): UpgradeFiles {
  const directory = join(dataDir, "upgrade");
  return {
    directory,
    state: join(directory, "state.json"),
    copy: join(directory, "database"),
    after: join(directory, "database-after"),
    worked: join(directory, "worked.json"),
  };
}

/** Returns the upgrade in progress. */
export function readUpgrade(dataDir: string): UpgradeState | undefined {
  const { state } = upgradeFiles(dataDir);
  if (!existsSync(state)) return undefined;
  try {
    const read = JSON.parse(readFileSync(state, "utf8")) as UpgradeState;
    if (read.format === 1 && [read.from, read.to].every((place) => place.startsWith("/"))) return read;
  } catch {
    // The error below names the file and the cure.
  }
  throw new UpgradeError(
    `${state} cannot be read by this Kontor; run kontor upgrade with the code that wrote it`,
  );
}

export function writeUpgrade(dataDir: string, state: UpgradeState): void {
  writeStateFile(upgradeFiles(dataDir).state, state, 0o600);
}

/** Ends the upgrade. The copy of the database stays until the next upgrade. */
export function endUpgrade(dataDir: string): void {
  const { state, worked } = upgradeFiles(dataDir);
  rmSync(worked, { force: true });
  rmSync(state, { force: true });
}

/**
 * Completes a rollback if `code` is the old code of an upgrade in progress. Returns undefined otherwise, or whether the
 * database was restored from the copy. Throws while another server runs on the database.
 */
export async function finishRollback(
  connection: Connection,
  { dataDir, hostId, code = ownCode }: { dataDir: string; hostId: string; code?: string },
): Promise<"kept" | "restored" | undefined> {
  const upgrade = readUpgrade(dataDir);
  if (upgrade?.from !== code) return undefined;
  // A server that was started manually from the old code would delete the new server's data.
  const chosen = realPathOf(join(dataDir, "current"));
  if (chosen !== undefined && chosen === realPathOf(upgrade.to)) {
    throw new UpgradeError(
      `an upgrade to ${upgrade.to} is in progress: complete it with kontor upgrade, or undo it with ` +
        "kontor upgrade --roll-back",
    );
  }
  const outcome = await restoreDatabase(connection, upgradeFiles(dataDir).copy, hostId);
  endUpgrade(dataDir);
  return outcome;
}

function realPathOf(place: string): string | undefined {
  try {
    return realpathSync(place);
  } catch {
    return undefined;
  }
}

/** Records that the new server of an upgrade begins to work. The copy lacks all later writes. */
export function recordWorkStart(dataDir: string, code = ownCode): void {
  const { worked } = upgradeFiles(dataDir);
  if (readUpgrade(dataDir)?.to !== code || existsSync(worked)) return;
  writeStateFile(worked, { at: new Date() }, 0o600);
}

/** Time at which the new server began to work. */
export function workStartedAt(dataDir: string): Date | undefined {
  const { worked } = upgradeFiles(dataDir);
  if (!existsSync(worked)) return undefined;
  return new Date((JSON.parse(readFileSync(worked, "utf8")) as { at: string }).at);
}

export interface DatabaseFacts {
  sizeBytes: number;
  /** Name of each applied migration, with its checksum. */
  migrations: ReadonlyMap<string, string>;
}

export async function databaseFacts(connection: Connection): Promise<DatabaseFacts> {
  return withClient(connection, async (client) => {
    const { rows: sizes } = await client.query<{ bytes: string }>(
      "select pg_database_size(current_database())::text as bytes",
    );
    const { rows } = await client.query<{ name: string; checksum: string }>(
      "select name, checksum from migrations order by name",
    );
    return {
      sizeBytes: Number(sizes[0]?.bytes),
      migrations: new Map(rows.map(({ name, checksum }) => [name, checksum])),
    };
  });
}

/**
 * Counts transactions that ended, and whether a statement runs now and does not wait for a lock. A long migration shows
 * no other progress.
 */
export async function databaseActivity(
  connection: Connection,
): Promise<{ transactions: number; isBusy: boolean }> {
  return withClient(connection, async (client) => {
    const { rows } = await client.query<{ transactions: string; is_busy: boolean }>(
      `select (xact_commit + xact_rollback)::text as transactions, exists (
         select from pg_stat_activity a where a.datname = current_database() and a.pid <> pg_backend_pid()
         and a.application_name = 'kontor' and a.state = 'active' and a.wait_event_type is distinct from 'Lock'
       ) as is_busy
       from pg_stat_database where datname = current_database()`,
    );
    return { transactions: Number(rows[0]?.transactions), isBusy: rows[0]?.is_busy === true };
  });
}
