/**
 * Runs random operations of several clients in any order, with failures and restarts of the server. A sandbox is always
 * in a state of the table, nothing acknowledged is lost, nothing blocks for ever, and a delete leaves nothing. The
 * model `testing/lifecycle-model.ts` holds the expected responses.
 *
 * `KONTOR_PROPERTY_RUNS` is the number of sequences; a failing sequence is printed with its seed.
 */
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import fc from "fast-check";
import { expect, test } from "vitest";
import { onKillPoint } from "#lib/kill-points.ts";
import { testDatabase } from "../../../../test/harness.ts";
import { type Event, LifecycleModel, type Verb } from "#sandbox/testing/lifecycle-model.ts";
import { personWithTier, testHost } from "#sandbox/testing/sandbox-app.ts";
import { terminateSandbox } from "./terminate.ts";

const { db } = await testDatabase();
const host = await testHost(db);
const { actor } = await personWithTier(db, "payg");

const runs = Number(process.env["KONTOR_PROPERTY_RUNS"] ?? 10);
const verb = fc.constantFrom<Verb>(
  ...(["read", "write", "exec", "keepAlive", "get"] as const),
  // These operations are twice as likely, because this test is about changes of state.
  ...(["pause", "pause", "resume", "resume"] as const),
  "terminate",
);
const nth = fc.nat(20);
const points = [
  "pause.begun",
  "pause.taken",
  "pause.committed",
  "resume.begun",
  "resume.restored",
  "resume.committed",
];
const create = fc.record({
  kind: fc.constant("create" as const),
  isAutoResumed: fc.boolean(),
  onTimeout: fc.constantFrom("kill" as const, "pause" as const),
});
const event: fc.Arbitrary<Event> = fc.oneof(
  { weight: 2, arbitrary: create },
  {
    weight: 8,
    arbitrary: fc.record({
      kind: fc.constant("verbs" as const),
      nth,
      verbs: fc.array(verb, { minLength: 1, maxLength: 4 }),
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      kind: fc.constant("failing" as const),
      fails: fc.constantFrom("checkpoint" as const, "restore" as const),
      nth,
      verbs: fc.array(verb, { minLength: 1, maxLength: 3 }),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({ kind: fc.constant("pass" as const), seconds: fc.constantFrom(1, 300, 700) }),
  },
  {
    weight: 1,
    arbitrary: fc.constant({ kind: "pass" as const, seconds: 31 * 24 * 3600 }),
  },
  { weight: 1, arbitrary: fc.constant({ kind: "restart" as const }) },
  {
    weight: 3,
    arbitrary: fc.record({ kind: fc.constant("dies" as const), nth, point: fc.constantFrom(...points) }),
  },
);

async function leftovers() {
  return {
    machines: (await host.driver.list()).length,
    rows: (await db.selectFrom("machines").select("id").execute()).length,
    snapshots: await readdir(join(host.directory, "snapshots")).catch(() => []),
    rowsOfSnapshots: (await db.selectFrom("snapshots").select("id").execute()).length,
  };
}

test(
  "keeps every sandbox in a valid state under any order of operations, failures and restarts, and leaves nothing",
  async () => {
    await fc.assert(
      fc.asyncProperty(create, fc.array(event, { minLength: 8, maxLength: 16 }), async (first, events) => {
        const model = new LifecycleModel(host, actor);
        try {
          for (const step of [first, ...events]) await model.play(step);
          await model.readAll();
        } finally {
          onKillPoint(undefined);
          for (const { id } of model.boxes) await terminateSandbox(host.app, actor, id);
        }
        await expect.poll(leftovers).toEqual({ machines: 0, rows: 0, snapshots: [], rowsOfSnapshots: 0 });
      }),
      { numRuns: runs, endOnFailure: true },
    );
  },
  60_000 + runs * 10_000,
);
