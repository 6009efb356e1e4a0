import { setImmediate as nextTurn } from "node:timers/promises";
import { expect, test } from "vitest";
import { FairJobs } from "./fair-jobs.ts";

/** The first letter of an id is the owner. */
function newJobs(options: { limit: number; perOwner?: number }) {
  const jobs = new FairJobs(options);
  const stops = new AbortController();
  const begun: string[] = [];
  const deferred: string[] = [];
  const ends: (() => void)[] = [];
  const run = (id: string) =>
    jobs.run(
      {
        owner: id.slice(0, 1),
        id,
        work: () => {
          begun.push(id);
          return new Promise<void>((resolve) => ends.push(resolve));
        },
        defer: async () => void deferred.push(id),
      },
      stops.signal,
    );
  const endNext = async () => {
    ends.shift()?.();
    await nextTurn();
  };
  return { jobs, begun, deferred, ends, run, endNext, stop: () => stops.abort() };
}

test("starts an owner's single job before another owner's twenty waiting jobs, in the worker that becomes free", async () => {
  const { jobs, begun, deferred, run, endNext } = newJobs({ limit: 1 });
  const worker = run("a0");
  const waiting = [...Array.from({ length: 20 }, (_, n) => `a${n + 1}`), "b1"];
  // Each waiting job frees its worker.
  for (const id of waiting) await run(id);
  expect([begun, deferred, jobs.hasWaiting]).toEqual([["a0"], waiting, true]);
  for (let n = 0; n < 22; n += 1) await endNext();
  await worker;
  expect(begun.slice(0, 3)).toEqual(["a0", "b1", "a1"]);
  expect([begun.length, jobs.hasWaiting]).toEqual([22, false]);
});

test("leaves unused slots to other owners", async () => {
  const { begun, run, endNext } = newJobs({ limit: 4, perOwner: 2 });
  const workers = ["a1", "a2", "a3", "b1"].map(run);
  expect(begun).toEqual(["a1", "a2", "b1"]);
  for (let n = 0; n < 4; n += 1) await endNext();
  await Promise.all(workers);
});

test("runs jobs with the same id one after the other, and keeps at most one of them waiting", async () => {
  const { begun, deferred, run, endNext } = newJobs({ limit: 2 });
  const worker = run("a1");
  for (let n = 0; n < 3; n += 1) await run("a1");
  expect([begun, deferred]).toEqual([["a1"], ["a1", "a1", "a1"]]);
  await endNext();
  expect(begun).toEqual(["a1", "a1"]);
  await endNext();
  await worker;
  expect(begun).toEqual(["a1", "a1"]);
});

test("starts no waiting job after the server begins to stop", async () => {
  const { begun, run, endNext, stop } = newJobs({ limit: 1 });
  const worker = run("a1");
  await run("a2");
  stop();
  await endNext();
  await worker;
  expect(begun).toEqual(["a1"]);
});

test("runs the waiting jobs after a job that fails", async () => {
  const jobs = new FairJobs({ limit: 1 });
  const { signal } = new AbortController();
  const begun: string[] = [];
  const first = Promise.withResolvers<void>();
  const job = (id: string, work: () => Promise<void>, defer = async () => {}) => ({
    owner: id,
    id,
    work: () => (begun.push(id), work()),
    defer,
  });
  const worker = jobs.run(
    job("a", () => first.promise),
    signal,
  );
  const failToDefer = async () => Promise.reject(new Error("the database is away"));
  await expect(
    jobs.run(
      job("b", async () => {}, failToDefer),
      signal,
    ),
  ).rejects.toThrow("away");
  first.reject(new Error("no luck"));
  await expect(worker).rejects.toThrow("no luck");
  expect([begun, jobs.hasWaiting]).toEqual([["a", "b"], false]);
});

test("runs a waiting job that lost its worker when the job table starts the job again", async () => {
  const { jobs, begun, deferred, ends, run, stop } = newJobs({ limit: 1 });
  const worker = run("a1");
  await run("b1");
  // The worker ends without running the waiting job.
  stop();
  ends.shift()?.();
  await worker;
  expect([begun, deferred]).toEqual([["a1"], ["b1"]]);
  const again = jobs.run(
    { owner: "b", id: "b1", work: async () => {}, defer: async () => void deferred.push("again") },
    new AbortController().signal,
  );
  expect(begun).toEqual(["a1", "b1"]);
  ends.shift()?.();
  await again;
  expect([deferred, jobs.hasWaiting]).toEqual([["b1"], false]);
});
