/**
 * The embedded PostgreSQL, for hosts without a PostgreSQL of their own (`DATABASE_URL`).
 *
 * Everything is in `<data>/postgres/`: `data/` (PGDATA), `runtime-<version>/` (the programs), `log/`, and the two files
 * that control who may connect. PostgreSQL is a daemon in its own session: it survives a kill -9 of the server, and the
 * next `ensureEmbedded` adopts it. Only root of this host and the account of the server can connect.
 *
 * Several processes may call `ensureEmbedded` at once, at any time, after any crash. Each call looks for a PostgreSQL,
 * starts one if necessary, and repeats this until PostgreSQL responds. No call ever declares data broken or removes
 * data.
 */
import { execFile, spawn } from "node:child_process";
import {
  chmodSync,
  chownSync,
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import type { Connection } from "../db.ts";
import {
  type Account,
  chooseAccount,
  findClosedDirectory,
  ensurePrograms,
  ownAccountName,
  removeOtherPrograms,
  socketDirectory,
} from "./files.ts";
import { database, hbaFile, identFile, initdbArguments, postgresArguments, role } from "./settings.ts";
import { exists, findPostmaster, isPostmasterOf, removeForeignLock } from "./postmaster.ts";
import { withClient } from "../with-client.ts";

export interface EmbeddedPostgres {
  connection: Connection;
  pid: number;
  /** True if PostgreSQL was running before this call. */
  adopted: boolean;
}

interface Layout {
  /** `<data>/postgres` */
  root: string;
  data: string;
  socket: string;
  log: string;
  hba: string;
  ident: string;
  startLog: string;
}

/** A first start copies 60 MB and runs initdb (0.7 s). Crash recovery of a large log may take much longer. */
const startTimeoutMs = 120_000;

/** Resolves when a PostgreSQL on `<dataDir>/postgres` accepts connections. Only tests pass `settings`. */
export async function ensureEmbedded(
  dataDir: string,
  options: { settings?: Record<string, string>; timeoutMs?: number } = {},
): Promise<EmbeddedPostgres> {
  const layout = layoutOf(dataDir);
  const deadline = Date.now() + (options.timeoutMs ?? startTimeoutMs);
  let started: number | undefined;
  let waitMs = 20;
  for (;;) {
    const running = findPostmaster(layout.data);
    const problem = running && (await refusal(connectionOf(running.socketDirectory, "postgres")));
    if (running && problem === undefined) {
      const connection = connectionOf(running.socketDirectory, database);
      await createDatabase(running.socketDirectory);
      return { connection, pid: running.pid, adopted: running.pid !== started };
    }
    if (Date.now() > deadline) {
      throw new Error(`PostgreSQL did not start: ${problem ?? tail(layout.startLog)}`, { cause: problem });
    }
    // Right after a kill -9 of the postmaster, its children still hold the shared memory and a start fails. The loop
    // retries with growing delays until they are gone.
    if (!running && (started === undefined || !exists(started)))
      started = await start(layout, options.settings);
    await sleep(waitMs);
    waitMs = Math.min(waitMs * 1.5, 500);
  }
}

/** Stops the PostgreSQL of a data directory, if one runs: closes its connections, and writes all data to disk. */
export async function stopEmbedded(dataDir: string): Promise<{ stopped: boolean }> {
  const { data, socket } = layoutOf(dataDir);
  const running = findPostmaster(data);
  if (!running) return { stopped: false };
  // "Fast shutdown" of postgres(1).
  process.kill(running.pid, "SIGINT");
  const deadline = Date.now() + startTimeoutMs;
  while (isPostmasterOf(running.pid, data)) {
    if (Date.now() > deadline) throw new Error(`PostgreSQL (process ${running.pid}) did not stop in time`);
    await sleep(20);
  }
  rmSync(socket, { recursive: true, force: true });
  return { stopped: true };
}

function layoutOf(dataDir: string): Layout {
  const root = join(dataDir, "postgres");
  return {
    root,
    data: join(root, "data"),
    socket: socketDirectory(root),
    log: join(root, "log"),
    hba: join(root, "pg_hba.conf"),
    ident: join(root, "pg_ident.conf"),
    startLog: join(root, "start.log"),
  };
}

function connectionOf(directory: string, name: string): Connection {
  return { socketDirectory: directory, user: role, database: name };
}

/** Starts a postmaster and returns its pid. The caller checks whether it accepts connections. */
async function start(layout: Layout, settings?: Record<string, string>): Promise<number> {
  const account = chooseAccount(layout.data);
  mkdirSync(layout.root, { recursive: true, mode: 0o755 });
  const closed = account && findClosedDirectory(layout.root, account);
  if (closed) {
    throw new Error(
      `PostgreSQL runs as the account ${account.name}, which may not enter ${closed}; ` +
        `allow it with chmod o+x, or choose another data directory`,
    );
  }
  const programs = ensurePrograms(layout.root);
  if (existsSync(layout.data)) checkMajorVersion(layout.data, programs);
  makeDirectory(layout.log, 0o700, account);
  // Any account may have created the parent directory, with any mode. PostgreSQL's account must be able to enter it.
  makeDirectory(dirname(layout.socket), 0o755, null);
  makeDirectory(layout.socket, 0o700, account);
  writeOwned(layout.hba, hbaFile, account);
  writeOwned(
    layout.ident,
    identFile([...new Set([ownAccountName(), account?.name ?? ownAccountName()])]),
    account,
  );
  if (!existsSync(layout.data)) await initialise(layout, programs, account);
  removeForeignLock(layout.data);

  const log = openSync(layout.startLog, "w", 0o600);
  try {
    const postmaster = spawn(join(programs, "bin", "postgres"), postgresArguments(layout, settings), {
      ...runAs(account),
      cwd: layout.data,
      // In its own session, neither Ctrl-C of a terminal nor the end of the server reaches it.
      detached: true,
      stdio: ["ignore", log, log],
    });
    await new Promise<void>((resolve, reject) => postmaster.once("spawn", resolve).once("error", reject));
    postmaster.unref();
    removeOtherPrograms(layout.root, programs);
    return postmaster.pid!;
  } finally {
    closeSync(log);
  }
}

/**
 * Creates PGDATA under a temporary name and renames it, so that the directory is always complete. If two processes
 * rename at once, only one succeeds.
 */
async function initialise(layout: Layout, programs: string, account: Account): Promise<void> {
  const aside = join(layout.root, `data.tmp-${process.pid}`);
  rmSync(aside, { recursive: true, force: true });
  makeDirectory(aside, 0o700, account);
  try {
    await promisify(execFile)(join(programs, "bin", "initdb"), initdbArguments(aside), {
      ...runAs(account),
      cwd: aside,
      timeout: startTimeoutMs,
    });
    renameSync(aside, layout.data);
  } catch (error) {
    if (existsSync(layout.data)) return;
    throw new Error(`PostgreSQL could not create its data directory: ${(error as Error).message}`, {
      cause: error,
    });
  } finally {
    rmSync(aside, { recursive: true, force: true });
  }
}

/**
 * Throws if the data is of another major version, which needs a dump and a restore. A start would fail later with a
 * less clear error.
 */
function checkMajorVersion(data: string, programs: string): void {
  const found = readFileSync(join(data, "PG_VERSION"), "utf8").trim();
  const ours = /runtime-(\d+)/.exec(programs)?.[1];
  if (found !== ours) {
    throw new Error(
      `${data} was created by PostgreSQL ${found}, but this server has ${ours}; dump it with ` +
        `${found} first`,
    );
  }
}

async function createDatabase(directory: string): Promise<void> {
  await withClient(connectionOf(directory, "postgres"), async (client) => {
    const { rowCount } = await client.query("select from pg_database where datname = $1", [database]);
    if (rowCount) return;
    await client.query(`create database ${database}`).catch((error: unknown) => {
      // 42P04, 23505: another process created it first.
      if (!["42P04", "23505"].includes((error as { code?: string }).code ?? "")) throw error;
    });
  });
}

/** Returns undefined if PostgreSQL responds, otherwise the reason why it does not. */
async function refusal(connection: Connection): Promise<string | undefined> {
  try {
    await withClient(connection, (client) => client.query("select 1"));
    return undefined;
  } catch (error) {
    return (error as Error).message;
  }
}

/**
 * Passes nothing of the server's environment on: it may hold secrets, and `PG…` variables change PostgreSQL's
 * behaviour.
 */
function runAs(account: Account): { uid?: number; gid?: number; env: NodeJS.ProcessEnv } {
  const env = { PATH: "/usr/bin:/bin", LC_ALL: "C", TZ: "UTC" };
  return account ? { uid: account.uid, gid: account.gid, env } : { env };
}

function makeDirectory(path: string, mode: number, account: Account): void {
  mkdirSync(path, { recursive: true, mode });
  chmodSync(path, mode);
  if (account) chownSync(path, account.uid, account.gid);
}

function writeOwned(path: string, content: string, account: Account): void {
  const aside = `${path}.tmp-${process.pid}`;
  writeFileSync(aside, content, { mode: 0o600 });
  if (account) chownSync(aside, account.uid, account.gid);
  renameSync(aside, path);
}

function tail(file: string): string {
  return existsSync(file)
    ? readFileSync(file, "utf8").trim().split("\n").slice(-5).join("\n")
    : "it left no error message";
}
