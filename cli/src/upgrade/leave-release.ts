/**
 * A restart after the checkout was moved by hand, for example by `git pull`. The server then runs from the checkout
 * instead of the directory of the last upgrade. Everything that can refuse does so before the server ends. The database
 * is not copied. So a return to the old code is possible only if the checkout has no migration that the database lacks.
 */
import { existsSync, realpathSync } from "node:fs";
import path from "node:path";
import type { Connection } from "@kontor/server/db/db.ts";
import { Failure } from "../lib/failure.ts";
import { findUpgrade, pointTo, readCurrent } from "../serve/current.ts";
import { checkDatabase, missingMigrations } from "./checks.ts";
import { commitOf, findTarget } from "./target.ts";

export interface Move {
  from: string;
  to: string;
  /** Migrations that the start of `to` will run. */
  missing: string[];
}

/** Returns undefined if the server already runs the checkout's commit, or code from elsewhere. Changes nothing. */
export async function findMove(
  data: string,
  checkout: string,
  connect: () => Promise<Connection>,
): Promise<Move | undefined> {
  const from = readCurrent(data);
  const releases = path.join(checkout, ".cache", "releases");
  // The link is a real path, and `.cache` may be a symlink itself.
  if (from === undefined || !existsSync(releases) || path.dirname(from) !== realpathSync(releases))
    return undefined;
  if (findUpgrade(data) !== undefined) return undefined;
  const commit = await commitOf(checkout);
  if (commit === undefined) {
    throw new Failure(`The commit of ${checkout} cannot be read, so the code to start is unknown.`, {
      hint: `Nothing was changed. Make git -C ${checkout} rev-parse HEAD work, or run kontor upgrade --to COMMIT.`,
    });
  }
  if (path.basename(from) === commit) return undefined;
  const target = await findTarget(checkout, checkout);
  const facts = await checkDatabase(await connect(), target);
  return { from, to: target.directory, missing: missingMigrations(facts, target) };
}

/** Points the data directory to the new code and restarts the server. If `restart` throws, the old code stays. */
export function makeMove(data: string, { from, to }: Move, restart: () => void): void {
  pointTo(data, to);
  try {
    restart();
  } catch (error) {
    pointTo(data, from);
    throw error;
  }
}
