/**
 * Add-ons on a separate server: the time from create to the first query, the throughput of `pgbench`, and the recovery
 * time after a kill.
 *
 * `pgbench` runs alternately against the add-on and against the same PostgreSQL with the same settings outside any
 * container. In both cases `pgbench` is the host's program, over TCP on loopback. For the add-on it runs in the
 * machine's network and CPU share.
 */
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis";
import pg from "pg";
import { run as runProgram } from "@kontor/runtime/exec.ts";
import { processIn } from "../../e2e/support/machine-processes.ts";
import { type Server, startServer } from "../../e2e/support/server.ts";
import type { BenchContext } from "../support/contract.ts";
import { programs, startHostPostgres } from "../rivals/host-postgres.ts";
import { percentile, measureTime } from "../support/measure.ts";

export const name = "addons";

const creates = 5;
const kills = 3;
const rounds = 3;
const secondsEach = 15;

export async function run(context: BenchContext): Promise<void> {
  context.progress("starting a server");
  const server = await startServer({ KONTOR_POOL_SIZE: "0", KONTOR_ADDONS_PORTS: "25410-25419" }, [
    "debian-12",
    "postgres-15",
    "redis-7",
  ]);
  try {
    const { body } = await server.api("POST", "/api/v1/projects", { body: { name: "bench" } });
    const path = `/api/v1/projects/${(body as { id: string }).id}/addons`;
    await firstQueries(context, server, path);
    const database = await create(server, path, { kind: "postgres", size: "large", public: true });
    await until(() => queryPostgres(database.url));
    await besideTheHost(context, server, database);
    await measureRecovery(context, server, database);
  } finally {
    await server.destroy();
  }
}

interface Database {
  id: string;
  url: string;
}

async function create(server: Server, path: string, input: Record<string, unknown>): Promise<Database> {
  const made = await server.api("POST", path, { body: input });
  const { id } = made.body as { id: string };
  const got = await server.api("GET", `${path}/${id}`);
  return { id, url: (got.body as { public_connection_url: string }).public_connection_url };
}

async function firstQueries(context: BenchContext, server: Server, path: string): Promise<void> {
  const bars = { postgres: 6000, redis: 2000 };
  const probes = { postgres: queryPostgres, redis: pingRedis };
  for (const kind of ["postgres", "redis"] as const) {
    const samples: number[] = [];
    for (let n = 0; n < creates; n += 1) {
      context.progress(`${kind}: create → first query`, n / creates);
      let id = "";
      const { ms } = await measureTime(async () => {
        const made = await create(server, path, { kind, public: true });
        id = made.id;
        await until(() => probes[kind](made.url));
      });
      samples.push(ms);
      await server.api("DELETE", `${path}/${id}`);
    }
    context.report({
      what: `${kind}: create → first query, p50`,
      value: percentile(samples, 50),
      unit: "ms",
      samples,
      bar: { atMost: bars[kind] },
      note: `n=${creates}, by the public port, image there; polled every ${askEveryMs} ms`,
    });
  }
}

async function besideTheHost(context: BenchContext, server: Server, database: Database): Promise<void> {
  await using host = await startHostPostgres(dirname(server.dataDir));
  const url = new URL(database.url);
  const machine = await machineOf(server, database.id);
  const inside = processIn(machine, `${programs}/postgres`);
  const ours = {
    PGPASSWORD: url.password,
    PGUSER: url.username,
    PGDATABASE: "kontor",
    PGHOST: "127.0.0.1",
    PGPORT: "5432",
  };
  const theirs = host.env;
  const pgbench = async (env: Record<string, string>, args: string[]) => {
    const enter =
      env === ours ? [...within(cpuGroupOf(inside)), "nsenter", `--target=${inside}`, "--net"] : [];
    const options = { env: { ...process.env, ...env }, timeoutMs: (secondsEach + 120) * 1000 };
    return (await runProgram([...enter, `${programs}/pgbench`, ...args], options)).stdout;
  };
  const rates = { ours: [] as number[], theirs: [] as number[] };
  for (const env of [ours, theirs]) await pgbench(env, ["-i", "-q", "-s", "10"]);
  for (let round = 0; round < rounds; round += 1) {
    context.progress(`pgbench, round ${round + 1} of ${rounds}`, round / rounds);
    for (const [who, env] of [
      ["ours", ours],
      ["theirs", theirs],
    ] as const) {
      const said = await pgbench(env, ["-c", "4", "-j", "2", "-T", String(secondsEach)]);
      rates[who].push(Number(/^tps = ([\d.]+)/m.exec(said)?.[1]));
    }
  }
  const [a, b] = [percentile(rates.ours, 50), percentile(rates.theirs, 50)];
  context.report({ what: "pgbench in an add-on (large), p50", value: a, unit: "tps", samples: rates.ours });
  context.report({
    what: "pgbench, the same PostgreSQL on the host, p50",
    value: b,
    unit: "tps",
    samples: rates.theirs,
  });
  context.report({
    what: "an add-on beside the host's PostgreSQL",
    value: (a / b) * 100,
    unit: "%",
    bar: { atLeast: 90 },
  });
}

/**
 * Returns a command prefix that runs a program of the host in the machine's control group, because CPU time is divided
 * among groups.
 */
function within(group: string): string[] {
  return ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', group];
}

function cpuGroupOf(pid: number): string {
  const lines = readFileSync(`/proc/${pid}/cgroup`, "utf8").trim().split("\n");
  const own = (line: string) => line.slice(line.indexOf(":/") + 1);
  const v1 = lines.find((line) => /^\d+:(?:.*,)?cpu(?:,.*)?:/.test(line));
  if (v1 !== undefined) return join("/sys/fs/cgroup/cpu", own(v1));
  return join("/sys/fs/cgroup", own(lines.find((line) => line.startsWith("0::")) ?? "0::/"));
}

async function measureRecovery(context: BenchContext, server: Server, database: Database): Promise<void> {
  const samples: number[] = [];
  for (let n = 0; n < kills; n += 1) {
    const writer = new pg.Client({ connectionString: database.url });
    writer.on("error", () => {});
    await writer.connect();
    const writing = writer
      .query("insert into pgbench_history (delta) select 1 from generate_series(1, 1e9)")
      .catch(() => {});
    await sleep(1_000);
    const pid = processIn(await machineOf(server, database.id), `${programs}/postgres`);
    const { ms } = await measureTime(async () => {
      process.kill(pid, "SIGKILL");
      await writing;
      await until(() => queryPostgres(database.url));
    });
    samples.push(ms);
    await writer.end().catch(() => {});
  }
  context.report({
    what: "PostgreSQL killed −9 while writing → answers, p50",
    value: percentile(samples, 50),
    unit: "ms",
    samples,
    bar: { atMost: 5000 },
    note: `n=${kills}`,
  });
}

async function machineOf(server: Server, id: string): Promise<string> {
  const [row] = await server.sql("select id from machines where owner_id = $1 and desired = 'running'", [id]);
  return String(row?.["id"]);
}

async function queryPostgres(url: string): Promise<void> {
  const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: 2_000 });
  client.on("error", () => {});
  try {
    await client.connect();
    await client.query("select 1");
  } finally {
    await client.end().catch(() => {});
  }
}

async function pingRedis(url: string): Promise<void> {
  const client = new Redis(url, { lazyConnect: true, retryStrategy: () => null });
  client.on("error", () => {});
  try {
    await client.connect();
    await client.ping();
  } finally {
    client.disconnect();
  }
}

/** Interval of attempts: a public port accepts fifty connections at once, then ten a second. */
const askEveryMs = 110;

/** Repeats a call until it succeeds. */
async function until(ask: () => Promise<void>): Promise<void> {
  for (const deadline = Date.now() + 120_000; ;) {
    const failure = await ask().then(
      () => undefined,
      (error: unknown) => error,
    );
    if (failure === undefined) return;
    if (Date.now() > deadline) throw failure as Error;
    await sleep(askEveryMs);
  }
}
