/**
 * Six clients run 500 operations on real machines while the server is killed (kill -9) 20 times at random moments.
 * Counts acknowledged changes that are lost, operations that hang, and leftovers on the host after everything is
 * deleted.
 *
 * `KONTOR_CHAOS_OPERATIONS`, `_KILLS` and `_SEED` change the length, the number of kills and the random order.
 */
import { setTimeout as sleep } from "node:timers/promises";
import { traces } from "../../e2e/support/host-state.ts";
import type { Server } from "../../e2e/support/server.ts";
import type { Api } from "../support/api.ts";
import { ChaosClient, type Tally, Violation } from "../support/chaos-client.ts";
import type { BenchContext } from "../support/contract.ts";
import { waitForIdleMachines } from "../support/machines.ts";
import { measureTime } from "../support/measure.ts";
import { withOwnServer, withoutPool } from "../support/own-server.ts";

export const name = "chaos";

const operations = Number(process.env["KONTOR_CHAOS_OPERATIONS"] ?? 500);
const kills = Number(process.env["KONTOR_CHAOS_KILLS"] ?? 20);
const seed = Number(process.env["KONTOR_CHAOS_SEED"] ?? Date.now() % 1_000_000);
const clients = 6;

export async function run(context: BenchContext): Promise<void> {
  const pool = { KONTOR_POOL_SIZE: "2", KONTOR_POOL_MAX: "2", KONTOR_RATE_LIMITS: "off" };
  await withOwnServer(context, pool, (server, api) => play(context, server, api));
}

async function play(context: BenchContext, server: Server, api: Api): Promise<void> {
  const random = randomOf(seed);
  const tally: Tally = { done: 0, broken: 0, retried: 0, slowestMs: 0, verbs: new Map() };
  const violations: string[] = [];
  const all = Array.from(
    { length: clients },
    (_, index) => new ChaosClient(api, `client-${index}`, randomOf(seed + index + 1), tally),
  );
  const recordViolation = (work: () => Promise<void>): Promise<void> =>
    work().catch((error: unknown) => {
      if (!(error instanceof Violation)) throw error;
      violations.push(error.message);
    });

  let begun = 0;
  const working = Promise.all(
    all.map(async (client) => {
      while (begun < operations) {
        begun += 1;
        await recordViolation(() => client.step());
      }
    }),
  );
  const restarts: number[] = [];
  for (let kill = 1; kill <= kills; kill += 1) {
    const due = (operations * (kill - random())) / kills;
    while (tally.done < due && begun < operations) await sleep(10);
    await sleep(random() * 200);
    await server.kill9();
    const { ms } = await measureTime(() => server.start());
    restarts.push(ms);
    context.progress(`killed ${kill} times, ${tally.done} operations`, tally.done / operations);
  }
  await working;
  for (const client of all) await recordViolation(() => client.checkAll());
  for (const client of all) await recordViolation(() => client.deleteAll());
  await waitForIdleMachines(server);

  const bar = { atMost: 0 };
  const note = `seed ${seed}; ${[...tally.verbs].map(([verb, count]) => `${count} ${verb}`).join(", ")}`;
  context.report({ what: "operations", value: tally.done, unit: "operations", note });
  context.report({
    what: "kill -9 of the server meanwhile",
    value: kills,
    unit: "kills",
    note: `${tally.broken} calls broke off, ${tally.retried} were told to come later`,
  });
  context.report({
    what: "lost, stuck, or answered outside the contract",
    value: violations.length,
    unit: "violations",
    bar,
    note: violations.slice(0, 3).join("; "),
  });
  context.report({ what: "slowest operation, kills included", value: tally.slowestMs, unit: "ms" });
  context.report({
    what: "from start to ready again",
    value: Math.max(...restarts),
    unit: "ms",
    samples: restarts,
  });

  const { body: left } = await server.api("GET", "/v1/sandboxes?limit=100");
  const alive = (left.items as { status: string }[]).filter(({ status }) => status !== "terminated");
  context.report({ what: "sandboxes left", value: alive.length, unit: "sandboxes", bar });
  const leaked = await leaks(server);
  context.report({
    what: "left on the host after the last delete",
    value: leaked.length,
    unit: "things",
    bar,
    note: leaked.slice(0, 5).join("; "),
  });
}

/** Returns the leftovers of machines on the host, the pool included, after the server wants no machine. */
async function leaks(server: Server): Promise<string[]> {
  await server.stop();
  Object.assign(server.description.env, withoutPool);
  await server.start();
  await waitForIdleMachines(server);
  const findLeftovers = async () => {
    const { processes, mounts, groups, loops, files, records } = await traces(server.dataDir);
    return Object.entries({ processes, mounts, groups, loops, files, records }).flatMap(([kind, names]) =>
      (names ?? []).map((one) => `${kind}: ${one}`),
    );
  };
  // The last removals may end after their responses.
  for (let tries = 0; tries < 60; tries += 1) {
    if ((await findLeftovers()).length === 0) return [];
    await sleep(500);
  }
  return findLeftovers();
}

/**
 * Returns a random generator (Mulberry32): the same seed gives the same order of operations, apart from effects of
 * timing.
 */
function randomOf(start: number): () => number {
  let state = start >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
