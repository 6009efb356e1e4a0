/**
 * Backup and restore of a PostgreSQL of 1 GB during writes. The backup includes its trial restore. Measures the
 * throughput, the server's memory, and the checksums afterwards.
 *
 * For comparison, PostgreSQL's own tools copy the same tables on the same host without writes and without a comparison:
 * pg_dump to a file, then pg_restore.
 */
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Pool } from "pg";
import { run as runProgram } from "@kontor/runtime/exec.ts";
import { Api } from "../support/api.ts";
import type { BenchContext } from "../support/contract.ts";
import { programs, startHostPostgres } from "../rivals/host-postgres.ts";
import { measureTime } from "../support/measure.ts";

export const name = "backups";

const rowsWanted = 1_000_000;
const accounts = 10_000;
const sampleEveryMs = 100;
/** Tables of the database. Rows of the filler table have a kilobyte, half of which compresses. */
const tables = [
  "create table accounts (id int primary key, balance bigint not null)",
  `insert into accounts select n, 100 from generate_series(1, ${accounts}) n`,
  "create table filler (id int primary key, text text not null)",
  `insert into filler select n, repeat('k', 512) || (select string_agg(md5(n::text || i), '') from generate_series(1, 16) i) from generate_series(1, ${rowsWanted}) n`,
];

interface Row {
  id: string;
  status: string;
  error: string | null;
  size_bytes?: number;
  public_connection_url?: string;
}

export async function run(context: BenchContext): Promise<void> {
  const api = new Api(context);
  const project = await api.json<Row>("POST", "/api/v1/projects", 201, { name: "bench-backups" });
  const addons = `/api/v1/projects/${project.id}/addons`;
  const made = await api.json<Row>("POST", addons, 201, { kind: "postgres", size: "large", public: true });
  const path = `${addons}/${made.id}`;
  context.progress("waiting for the database", 0);
  const addon = await until(() => api.json<Row>("GET", path, 200), "running");
  const pool = new Pool({ connectionString: addon.public_connection_url!, max: 2 });
  // A restore closes all connections.
  pool.on("error", () => {});
  try {
    context.progress("filling", 0.1);
    for (const statement of tables) await pool.query(statement);
    const { rows } = await pool.query<{ bytes: string }>(
      "select pg_database_size(current_database()) as bytes",
    );
    const megabytes = Number(rows[0]!.bytes) / 1e6;
    const writing = new AbortController();
    const written = write(pool, writing.signal);
    context.progress("backing up", 0.4);
    const before = residentBytes(context.serverPid);
    const memory = watchMemory(context.serverPid);
    const began = performance.now();
    const { id } = await api.json<Row>("POST", `${path}/backups`, 201);
    const ofBackup = async () =>
      (await api.json<Row[]>("GET", `${path}/backups`, 200)).find((row) => row.id === id)!;
    await until(ofBackup, "completed");
    const rate = (megabytes * 1000) / (performance.now() - began);
    const most = memory.stop();
    writing.abort();
    await written;
    const note = `${Math.round(megabytes)} MB, written to meanwhile, restored and compared`;
    context.report({
      what: "backup, trial included",
      value: rate,
      unit: "MB/s",
      bar: { atLeast: 40 },
      note,
    });
    context.report({
      what: "the server's memory at its most, over before",
      value: (most - before) / 1e6,
      unit: "MB",
      bar: { atMost: 64 },
      note,
    });
    context.progress("restoring", 0.7);
    await pool.query("drop table accounts");
    const restoreBegan = performance.now();
    await api.json<Row>("POST", `${path}/backups/${id}/restore`, 202);
    await until(async () => (await api.json<Row[]>("GET", `${path}/restores`, 200))[0]!, "completed");
    const restoreSeconds = (performance.now() - restoreBegan) / 1000;
    context.report({
      what: "restore in place, safety backup included",
      value: restoreSeconds,
      unit: "s",
      note,
    });
    const after = await pool.query<{ sum: string; count: string }>(
      "select sum(balance), (select count(*) from filler) as count from accounts",
    );
    const { sum, count } = after.rows[0]!;
    if (Number(sum) !== 100 * accounts || Number(count) !== rowsWanted)
      throw new Error(`the restored sums are ${sum} and ${count}`);
    context.progress("PostgreSQL's own tools", 0.9);
    const bare = await ownTools(dirname(context.dataDirectory), megabytes);
    context.report({
      what: "pg_dump to a file, then pg_restore, on the host",
      value: bare,
      unit: "MB/s",
      note: "the same tables, written to by nobody, nothing compared",
    });
    context.report({ what: "a backup beside those", value: (rate / bare) * 100, unit: "%" });
  } finally {
    await pool.end();
    await api.send("DELETE", `/api/v1/projects/${project.id}`);
  }
}

async function ownTools(beside: string, megabytes: number): Promise<number> {
  await using host = await startHostPostgres(beside);
  const tool = (name: string, ...args: string[]) =>
    runProgram([`${programs}/${name}`, ...args], {
      env: { ...process.env, ...host.env },
      timeoutMs: 10 * 60_000,
    });
  await tool("psql", "-Xq", ...tables.flatMap((statement) => ["-c", statement]));
  const file = join(host.directory, "dump");
  const { ms } = await measureTime(async () => {
    await tool("pg_dump", "--format=custom", "--compress=1", "--file", file);
    await tool("createdb", "again");
    await tool("pg_restore", "--exit-on-error", "-d", "again", file);
  });
  return (megabytes * 1000) / ms;
}

/** Transfers money between accounts, so that the sum is the same at every moment. */
async function write(pool: Pool, signal: AbortSignal): Promise<void> {
  const client = await pool.connect();
  try {
    for (let n = 0; !signal.aborted; n++) {
      const [from, to] = [1 + (n % accounts), 1 + ((n * 7) % accounts)];
      await client.query("begin");
      await client.query("update accounts set balance = balance - 1 where id = $1", [from]);
      await client.query("update accounts set balance = balance + 1 where id = $1", [to]);
      await client.query("commit");
    }
  } finally {
    client.release();
  }
}

async function until(ask: () => Promise<Row>, status: string): Promise<Row> {
  for (;;) {
    const row = await ask();
    if (row.status === status) return row;
    if (row.status === "failed") throw new Error(row.error ?? "failed");
    await sleep(200);
  }
}

function residentBytes(pid: number): number {
  const status = readFileSync(`/proc/${pid}/status`, "utf8");
  return Number(/^VmRSS:\s+(\d+) kB$/m.exec(status)?.[1]) * 1024;
}

function watchMemory(pid: number): { stop: () => number } {
  let most = residentBytes(pid);
  const timer = setInterval(() => (most = Math.max(most, residentBytes(pid))), sampleEveryMs);
  return {
    stop: () => {
      clearInterval(timer);
      return most;
    },
  };
}
