import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { sql } from "kysely";
import { afterEach, expect, test, vi } from "vitest";
import { silentLog, testDatabase } from "../../test/harness.ts";
import { transaction } from "#db/db.ts";
import { openJobs, type Jobs } from "./jobs.ts";

const { connection, db, pool } = await testDatabase();
await sql`create table witness (pid int, what text)`.execute(db);

const started: Jobs[] = [];
const children: ChildProcess[] = [];
afterEach(async () => {
  for (const child of children.splice(0)) child.kill("SIGKILL");
  for (const jobs of started.splice(0)) await jobs.stop(1_000);
  await sql`truncate witness, graphile_worker._private_jobs`.execute(db);
});

async function open(): Promise<Jobs> {
  const jobs = await openJobs({ db, pool, log: silentLog, hostId: "host_a", version: "test" });
  started.push(jobs);
  return jobs;
}

async function spawnWorker(waitMs: number): Promise<ChildProcess> {
  const program = join(import.meta.dirname, "../../test/programs/work.ts");
  const child = spawn(process.execPath, [program, JSON.stringify(connection), String(waitMs)], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  children.push(child);
  await once(child.stdout!, "data");
  return child;
}

async function witnesses(): Promise<{ pid: number; what: string }[]> {
  return (await sql<{ pid: number; what: string }>`select * from witness`.execute(db)).rows;
}

test("runs a job if and only if its transaction commits", async () => {
  const jobs = await open();
  const ran: unknown[] = [];
  await jobs.startWorker({ collect: async (payload: unknown) => void ran.push(payload) });
  const rolledBack = transaction(db, async (tx) => {
    await jobs.add(tx, "collect", { n: 1 });
    throw new Error("no");
  });
  await expect(rolledBack).rejects.toThrow("no");
  await transaction(db, (tx) => jobs.add(tx, "collect", { n: 2, list: [1, "a"] }));
  await vi.waitFor(() => expect(ran).toEqual([{ n: 2, list: [1, "a"] }]), 30_000);
});

test("replaces a waiting job with the same key, and never runs a cancelled job", async () => {
  const jobs = await open();
  const later = new Date(Date.now() + 3_600_000);
  await jobs.add(db, "collect", { n: 1 }, { key: "k", runAt: later });
  await jobs.add(db, "collect", { n: 2 }, { key: "k", runAt: later, maxAttempts: 3, queue: "q" });
  const { rows } = await sql`select payload, max_attempts, run_at from graphile_worker._private_jobs`.execute(
    db,
  );
  expect(rows).toEqual([{ payload: { n: 2 }, max_attempts: 3, run_at: later }]);
  await jobs.cancel(db, "k");
  expect((await sql`select from graphile_worker._private_jobs`.execute(db)).rows).toEqual([]);
});

test("does not run a job that is named for another host", async () => {
  const jobs = await open();
  const ran: string[] = [];
  await jobs.startWorker({ "machine@host_a": async () => void ran.push("a") });
  await jobs.add(db, "machine@host_b", {});
  await jobs.add(db, "machine@host_a", {});
  await vi.waitFor(() => expect(ran).toEqual(["a"]), 30_000);
  const left =
    await sql`select from graphile_worker.jobs where task_identifier = 'machine@host_b' and attempts = 0`.execute(
      db,
    );
  expect(left.rows).toHaveLength(1);
});

test("waits for a running job on stop, and starts no new job", async () => {
  const jobs = await open();
  const finish = Promise.withResolvers<void>();
  const seen: string[] = [];
  await jobs.startWorker({
    slow: async () => {
      seen.push("started");
      await finish.promise;
      seen.push("finished");
    },
  });
  await jobs.add(db, "slow", {});
  await vi.waitFor(() => expect(seen).toEqual(["started"]), 30_000);
  const stopped = jobs.stop(30_000);
  finish.resolve();
  await stopped;
  expect(seen).toEqual(["started", "finished"]);
  started.splice(0);
  expect(await db.selectFrom("processes").selectAll().where("id", "=", jobs.processId).execute()).toEqual([]);
});

test("runs a job in another process after its process was killed", async () => {
  const first = await spawnWorker(600_000);
  await sql`select graphile_worker.add_job('record', '{}'::json)`.execute(db);
  await vi.waitFor(
    async () => expect(await witnesses()).toEqual([{ pid: first.pid, what: "started" }]),
    10_000,
  );
  const second = await spawnWorker(0);
  first.kill("SIGKILL");
  await vi.waitFor(
    async () => expect(await witnesses()).toContainEqual({ pid: second.pid, what: "finished" }),
    {
      timeout: 45_000,
      interval: 100,
    },
  );
  expect((await witnesses()).map(({ what }) => what)).toEqual(["started", "started", "finished"]);
});

test("keeps the row and the jobs of a process whose heartbeat is committed too late", async () => {
  const jobs = await open();
  const finish = Promise.withResolvers<void>();
  let starts = 0;
  await jobs.startWorker({
    slow: async () => {
      starts++;
      await finish.promise;
    },
  });
  await jobs.add(db, "slow", {});
  await vi.waitFor(() => expect(starts).toBe(1), 30_000);
  // Each heartbeat is an hour old when it is committed, as after a stall of the disk.
  await sql`create function stall() returns trigger language plpgsql as
    $$ begin new.seen_at := now() - interval '1 hour'; return new; end $$`.execute(db);
  await sql`create trigger stall before insert or update on processes
    for each row execute function stall()`.execute(db);
  try {
    await sql`update graphile_worker._private_jobs set locked_at = now() - interval '1 hour'`.execute(db);
    // When the lock of a pool without heartbeats is released, the search for dead processes is over.
    await jobs.add(db, "of another worker", {});
    await sql`update graphile_worker._private_jobs set locked_at = now() - interval '1 hour', locked_by = 'gone'
      where locked_by is null`.execute(db);
    const locks = async () =>
      (
        await sql<{ locked_by: string | null }>`
          select locked_by from graphile_worker._private_jobs order by id`.execute(db)
      ).rows.map(({ locked_by }) => locked_by);
    await vi.waitFor(async () => expect((await locks())[1]).toBeNull(), { timeout: 45_000, interval: 100 });
    expect((await locks())[0]).not.toBeNull();
    const own = await db.selectFrom("processes").select("id").where("id", "=", jobs.processId).execute();
    expect(own).toEqual([{ id: jobs.processId }]);
    expect(starts).toBe(1);
  } finally {
    await sql`drop trigger stall on processes`.execute(db);
    await sql`drop function stall`.execute(db);
    finish.resolve();
  }
});
