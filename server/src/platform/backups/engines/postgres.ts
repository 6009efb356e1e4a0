/**
 * PostgreSQL is backed up with its own pg_dump, in custom format, from an exported snapshot. Every table is counted and
 * hashed in the same snapshot. So the later comparison covers exactly the saved moment, even under writes. A restore
 * fills a second database, and compares its content with the description of the backup. Two renames in one transaction
 * swap the databases. The old one is dropped after the result is recorded.
 */
import { runAllOrAbort } from "#lib/concurrency/run-all-or-abort.ts";
import { abortable } from "#lib/concurrency/abortable.ts";
import type { Guest } from "#machines/host/guest.ts";
import type { Addons } from "#platform/addons/addons.ts";
import type { BackupEngine } from "./engine.ts";
import { BackupFailed } from "../errors.ts";
import {
  type Contents,
  contentsScript,
  differences,
  hashOf,
  isComparable,
  readContents,
  sequenceDifferences,
  sequences,
} from "./pg-contents.ts";
import { asPostgres, bin, psql, Session } from "./pg-session.ts";
import { feed, outputOf, type Program, textOf } from "./streams.ts";

interface PostgresDescription {
  contents: Contents;
  /** Sequences before and after the dump. */
  sequences: readonly [Contents, Contents];
}

/** Longest wait for table locks of other sessions. */
const lockTimeout = "5min";
/** Name of the database in the throwaway instance. */
const trial = "kontor_try";
const shownDifferences = 3;
const renameTries = 10;

export const postgres: BackupEngine = {
  extension: "dump",

  async dump(guest, addon, sink, signal) {
    const database = databaseOf(addon);
    using session = await Session.open(guest, database, signal);
    const before = await readSequences(guest, database, signal);
    const [snapshot = ""] = await session.query(
      "begin transaction isolation level repeatable read, read only;\nselect pg_export_snapshot();",
    );
    const taken = Promise.withResolvers<void>();
    let after: Contents | undefined;
    async function* dump(ends: AbortSignal) {
      for await (const piece of outputOf(guest, dumpProgram(database, snapshot), ends)) {
        taken.resolve();
        yield piece;
      }
      after = await readSequences(guest, database, ends);
    }
    const [stored, contents] = await runAllOrAbort(
      signal,
      (ends) => sink(dump(ends)),
      async (ends) => {
        const lines = await session.query(contentsScript, ends);
        // pg_dump sends its first byte after it took the snapshot. The transaction ends then: loading the test restore
        // may take long, and no ALTER TABLE should wait for its locks.
        await abortable(taken.promise, ends);
        await session.query("commit;", ends);
        return lines;
      },
    );
    const description: PostgresDescription = {
      contents: readContents(contents),
      sequences: [before, after!],
    };
    return { stored, description };
  },

  async load(guest, addon, content, signal) {
    await createDatabase(guest, trial, addon.username, signal);
    await load(guest, trial, content, signal);
  },

  async compare(guest, _addon, description, signal) {
    const { contents: expected, sequences: stood } = description as PostgresDescription;
    const found = await readDatabase(guest, trial, signal);
    const differ = [
      ...differences(expected, found.contents),
      ...sequenceDifferences(...stood, found.sequences),
    ];
    if (differ.length > 0) throw notTheSame(differ);
    return hashOf(new Map([...found.contents, ...found.sequences]));
  },

  async restore({ addons, addon, id, source, contents, signal }) {
    const guest = runningGuest(addons, addon.id);
    const database = databaseOf(addon);
    const names = namesOf(id);
    // An earlier run swapped the databases; only the clean-up is left.
    if (await exists(guest, names.before, signal)) return;
    await createDatabase(guest, names.beside, addon.username, signal);
    try {
      await load(guest, names.beside, source(), signal);
      const found = await readDatabase(guest, names.beside, signal);
      const hash = hashOf(new Map([...found.contents, ...found.sequences]));
      if (contents !== null && isComparable(contents) && hash !== contents)
        throw new BackupFailed("The restored data differs from the backup.");
      await query(guest, "postgres", copySettings(database, names.beside), signal);
      await swap(guest, database, names, signal);
    } catch (error) {
      const soon = AbortSignal.timeout(60_000);
      // The swap succeeded, and only its response was lost.
      if (await exists(guest, names.before, soon)) return;
      await query(guest, "postgres", open(database), soon);
      await dropDatabase(guest, names.beside, soon).catch(() => {});
      throw error;
    }
  },

  async isInPlace({ addons, addon, id, signal }) {
    return exists(runningGuest(addons, addon.id), namesOf(id).before, signal);
  },

  async cleanUp({ addons, addon, id, isCompleted }) {
    const guest = runningGuest(addons, addon.id);
    const { beside, before } = namesOf(id);
    const signal = AbortSignal.timeout(5 * 60_000);
    await query(guest, "postgres", open(databaseOf(addon)), signal);
    for (const name of isCompleted ? [beside, before] : [beside]) await dropDatabase(guest, name, signal);
  },
};

function runningGuest(addons: Addons, id: string): Guest {
  const guest = addons.guest(id);
  if (!guest) throw new BackupFailed("The add-on is not running.");
  return guest;
}

function databaseOf(addon: { database: string | null; username: string }): string {
  return addon.database ?? addon.username;
}

function namesOf(id: string) {
  const short = id.replaceAll("-", "");
  return { beside: `kontor_new_${short}`, before: `kontor_old_${short}` };
}

/** The lowest compression level: higher levels are slower than most disks and networks. */
function dumpProgram(database: string, snapshot: string): Program {
  return {
    argv: [
      `${bin}/pg_dump`,
      "--format=custom",
      "--compress=1",
      "--no-password",
      `--snapshot=${snapshot}`,
      `--lock-wait-timeout=${lockTimeout}`,
      "-d",
      database,
    ],
    ...asPostgres,
  };
}

async function load(
  guest: Guest,
  database: string,
  content: AsyncIterable<Buffer>,
  signal: AbortSignal,
): Promise<void> {
  const argv = [`${bin}/pg_restore`, "--exit-on-error", "--no-password", "-d", database];
  const program = {
    argv,
    user: "postgres",
    env: {
      PGOPTIONS:
        "-c statement_timeout=0 -c lock_timeout=0 -c default_transaction_read_only=off -c synchronous_commit=off",
    },
  };
  await feed(guest, program, content, signal);
}

async function readDatabase(
  guest: Guest,
  database: string,
  signal: AbortSignal,
): Promise<{ contents: Contents; sequences: Contents }> {
  using session = await Session.open(guest, database, signal);
  const contents = readContents(await session.query(contentsScript));
  return { contents, sequences: readContents(await session.query(sequences)) };
}

async function readSequences(guest: Guest, database: string, signal: AbortSignal): Promise<Contents> {
  using session = await Session.open(guest, database, signal);
  return readContents(await session.query(sequences));
}

async function createDatabase(guest: Guest, name: string, owner: string, signal: AbortSignal): Promise<void> {
  await dropDatabase(guest, name, signal);
  await query(
    guest,
    "postgres",
    `create database ${quote(name)} owner ${quote(owner)} template template0;
     revoke connect on database ${quote(name)} from public;`,
    signal,
  );
}

async function dropDatabase(guest: Guest, name: string, signal: AbortSignal): Promise<void> {
  await query(guest, "postgres", `drop database if exists ${quote(name)} with (force);`, signal);
}

async function exists(guest: Guest, name: string, signal: AbortSignal): Promise<boolean> {
  const answer = await query(
    guest,
    "postgres",
    `select count(*) from pg_database where datname = '${name}';`,
    signal,
  );
  return answer.trim() === "1";
}

/** Copies the database's settings, privileges and connection limit, which a dump of its content omits. */
function copySettings(from: string, to: string): string {
  return `
    insert into pg_db_role_setting (setdatabase, setrole, setconfig)
      select t.oid, s.setrole, s.setconfig from pg_db_role_setting s
      join pg_database f on f.oid = s.setdatabase and f.datname = '${from}'
      join pg_database t on t.datname = '${to}';
    update pg_database t set datacl = f.datacl, datconnlimit = f.datconnlimit
      from pg_database f where f.datname = '${from}' and t.datname = '${to}';`;
}

/**
 * Forbids new connections, ends the existing ones, and renames both databases in one transaction. If that fails, the
 * caller opens the old database again.
 */
async function swap(
  guest: Guest,
  database: string,
  { beside, before }: { beside: string; before: string },
  signal: AbortSignal,
): Promise<void> {
  const close = `alter database ${quote(database)} with allow_connections false;`;
  const sendAway = `select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = '${database}';`;
  const rename = `begin;
    alter database ${quote(database)} rename to ${quote(before)};
    alter database ${quote(beside)} rename to ${quote(database)};
    commit;`;
  await query(guest, "postgres", close, signal);
  for (let attempt = 1; ; attempt++) {
    try {
      await query(guest, "postgres", `${sendAway}\n${rename}`, signal);
      return;
    } catch (error) {
      // A terminated session may take a moment to end. A rename waits five seconds for the end of sessions.
      if (attempt === renameTries || signal.aborted) throw error;
    }
  }
}

function open(database: string): string {
  return `alter database ${quote(database)} with allow_connections true;`;
}

function query(guest: Guest, database: string, statements: string, signal: AbortSignal): Promise<string> {
  return textOf(guest, { argv: [...psql(database), "-f", "-"], ...asPostgres, stdin: statements }, signal);
}

/** Quotes a name. Our names have only letters, digits and underscores. */
function quote(name: string): string {
  if (!/^[a-z][a-z0-9_]{0,62}$/.test(name))
    throw new Error(`${name} is not a valid name of a role or database`);
  return `"${name}"`;
}

function notTheSame(differ: readonly string[]): BackupFailed {
  const more = differ.length > shownDifferences ? ` (and ${differ.length - shownDifferences} more)` : "";
  const shown = differ.slice(0, shownDifferences).join("; ");
  return new BackupFailed(`The test restore differs from the database: ${shown}${more}.`);
}
