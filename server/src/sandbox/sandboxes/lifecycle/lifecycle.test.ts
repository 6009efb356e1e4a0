import { sql } from "kysely";
import { expect, test } from "vitest";
import { RuntimeError } from "@kontor/runtime/driver.ts";
import { DomainError } from "#lib/errors.ts";
import { testDatabase } from "../../../../test/harness.ts";
import { createInput, personWithTier, testHost } from "#sandbox/testing/sandbox-app.ts";
import { createSandbox } from "./create.ts";
import { expireSandboxes } from "./expire.ts";
import { keepAlive } from "./keep-alive.ts";
import { metrics } from "../metrics.ts";
import { getSandbox } from "../sandboxes.ts";
import { forkSandbox } from "./fork.ts";
import { KeepAlive, SandboxFork, toSandbox } from "../schema.ts";
import { endSandbox, terminateSandbox } from "./terminate.ts";

const { db } = await testDatabase();
const host = await testHost(db, { config: { maxSandboxesFree: "3" } });
const paid = await personWithTier(db, "enterprise");

const create = (input: Record<string, unknown> = {}) =>
  createSandbox(host.app, paid.actor, createInput(input));
const get = (id: string) => getSandbox(host.app, paid.actor, id);

/** Error code of a refusal, or the result if the call succeeded. */
async function refusal(work: Promise<unknown>): Promise<unknown> {
  try {
    return await work;
  } catch (error) {
    return error instanceof DomainError ? { code: error.code, status: error.status, ...error.meta } : error;
  }
}

/** Number of machine rows and of machines on the host, once no operation is in flight. */
async function machineCount(): Promise<{ rows: number; machines: number }> {
  await expect
    .poll(() => db.selectFrom("machines").select("id").where("desired", "=", "removed").execute())
    .toEqual([]);
  const rows = await db.selectFrom("machines").select("id").execute();
  return { rows: rows.length, machines: (await host.driver.list()).length };
}

function withMark(mark: string) {
  return db
    .selectFrom("sandboxes")
    .selectAll()
    .where(sql<boolean>`metadata @> ${JSON.stringify({ mark })}::jsonb`)
    .execute();
}

test("gives a created sandbox a row and a running machine of its own", async () => {
  const before = await machineCount();
  const row = await create({ env: { A: "b" }, network: "off" });
  expect(await machineCount()).toEqual({ rows: before.rows + 1, machines: before.machines + 1 });
  const machine = (await host.driver.list()).find(({ id }) => id === row.machine_id);
  expect(machine).toMatchObject({
    state: "running",
    spec: {
      hostname: row.id.replace("_", "-"),
      network: "off",
      env: { A: "b", KONTOR_SANDBOX_ID: row.id },
      resources: { vcpus: 1, memoryBytes: 1024 ** 3 },
    },
  });
  await terminateSandbox(host.app, paid.actor, row.id);
  expect(await machineCount()).toEqual(before);
});

test("stores the environment encrypted", async () => {
  const row = await create({ env: { TOKEN: "canary-value" } });
  const stored = await db.selectFrom("machines").selectAll().where("id", "=", row.machine_id).execute();
  expect(JSON.stringify(stored)).not.toContain("canary-value");
  expect(stored[0]?.env_sealed?.toString("latin1")).not.toContain("canary-value");
  await terminateSandbox(host.app, paid.actor, row.id);
});

test("leaves a terminated row with the reason, and no machine, after a failed start", async () => {
  const before = await machineCount();
  host.driver.fail("create", new RuntimeError("failed", "no luck"));
  const mark = { mark: "fails" };
  expect(await refusal(create({ metadata: mark }))).toMatchObject({ code: "start_failed", status: 503 });
  expect(await machineCount()).toEqual(before);
  expect(await withMark("fails")).toMatchObject([
    { status: "terminated", termination_reason: "start_failed" },
  ]);
});

test("accepts as many concurrent creates as the tier allows", async () => {
  const free = await personWithTier(db, "free");
  const tries = await Promise.all(
    Array.from({ length: 6 }, () => refusal(createSandbox(host.app, free.actor, createInput()))),
  );
  const refused = tries.filter((answer) => (answer as { code?: string }).code !== undefined);
  expect(refused).toHaveLength(3);
  for (const answer of refused) {
    expect(answer).toMatchObject({
      code: "plan_limit",
      status: 403,
      limit: "max_concurrent_sandboxes",
      allowed: 3,
      tier_needed: "payg",
    });
  }
  const made = tries.filter((answer) => (answer as { code?: string }).code === undefined) as { id: string }[];
  await terminateSandbox(host.app, free.actor, made[0]?.id ?? "");
  expect(await createSandbox(host.app, free.actor, createInput())).toMatchObject({ status: "running" });
});

test("refuses sizes, lifetimes and allowlists above the tier's limits", async () => {
  const { actor } = await personWithTier(db, "free");
  const tryFree = (input: Record<string, unknown>) =>
    refusal(createSandbox(host.app, actor, createInput(input)));
  expect(await tryFree({ size: "medium" })).toMatchObject({ code: "plan_limit", status: 403, limit: "size" });
  expect(await tryFree({ timeout_seconds: 1801 })).toMatchObject({ code: "timeout_too_long", status: 400 });
  expect(await tryFree({ allow_domains: ["example.com"] })).toMatchObject({
    code: "plan_limit",
    status: 403,
  });
  const made = await createSandbox(host.app, actor, createInput({ timeout_seconds: 1800 }));
  expect(await refusal(keepAlive(host.app, actor, made.id, 1801))).toMatchObject({
    code: "timeout_too_long",
    status: 400,
  });
  expect(await keepAlive(host.app, actor, made.id, 1800)).toMatchObject({ timeout_seconds: 1800 });
});

test("refuses creates of a suspended account", async () => {
  const { actor } = await personWithTier(db, "payg");
  const suspended = { ...actor, workspaces: actor.workspaces.map((one) => ({ ...one, suspended: true })) };
  expect(await refusal(createSandbox(host.app, suspended, createInput()))).toMatchObject({
    code: "account_suspended",
    status: 402,
  });
});

test("terminates a sandbox at its deadline and not before, with the reason timeout", async () => {
  const row = await create({ timeout_seconds: 60 });
  host.clock.advance(59_999);
  await expireSandboxes(host.app);
  expect(await get(row.id)).toMatchObject({ status: "running" });
  host.clock.advance(1);
  expect(await expireSandboxes(host.app)).toBeGreaterThanOrEqual(1);
  expect(await get(row.id)).toMatchObject({
    status: "terminated",
    termination_reason: "timeout",
    terminated_at: host.clock.now(),
    running_seconds: 60,
    machine_id: null,
  });
});

test("does not terminate a sandbox whose keep-alive follows the read of its deadline", async () => {
  const row = await create({ timeout_seconds: 60 });
  host.clock.advance(60_000);
  const lookedAt = host.clock.now();
  await keepAlive(host.app, paid.actor, row.id, 120);
  expect(await endSandbox(host.app, { id: row.id, reason: "timeout", expiredBy: lookedAt })).toBe(false);
  expect(await get(row.id)).toMatchObject({
    status: "running",
    expires_at: new Date(lookedAt.getTime() + 120_000),
  });
  await terminateSandbox(host.app, paid.actor, row.id);
});

test("terminates a sandbox only for the first of many concurrent deletes, and keeps its reason", async () => {
  const row = await create();
  const ends = await Promise.all([
    endSandbox(host.app, { id: row.id, reason: "requested" }),
    endSandbox(host.app, { id: row.id, reason: "timeout" }),
    endSandbox(host.app, { id: row.id, reason: "out_of_memory" }),
  ]);
  expect(ends.filter(Boolean)).toHaveLength(1);
  const ended = await get(row.id);
  await terminateSandbox(host.app, paid.actor, row.id);
  expect(await get(row.id)).toEqual(ended);
});

test.for([
  ["out_of_memory", "out_of_memory"],
  ["failed", "host_lost"],
] as const)("terminates a sandbox whose machine ends by itself (%s) as %s", async ([how, reason]) => {
  const row = await create();
  host.driver.end(row.machine_id ?? "", how);
  await expect.poll(() => get(row.id)).toMatchObject({ status: "terminated", termination_reason: reason });
  expect((await machineCount()).machines).toBe((await machineCount()).rows);
});

test("gives a sandbox its machine again after a restart, and ends an unfinished start as start_failed", async () => {
  const before = await machineCount();
  const kept = await create();
  // A server that died between commit and start leaves the rows and no machine.
  const half = await create();
  await host.restart((meanwhile) => meanwhile.remove(half.machine_id ?? ""));
  expect(await get(kept.id)).toMatchObject({ status: "running", machine_id: kept.machine_id });
  expect(await get(half.id)).toMatchObject({ status: "terminated", termination_reason: "start_failed" });
  await terminateSandbox(host.app, paid.actor, kept.id);
  expect(await machineCount()).toEqual(before);
});

test("gives an adopted machine its owner's environment and host name again after a restart", async () => {
  const row = await create({ env: { KEPT: "yes" } });
  await host.restart();
  const machine = (await host.driver.list()).find(({ id }) => id === row.machine_id);
  expect(machine?.spec).toMatchObject({
    hostname: row.id.replace("_", "-"),
    env: { KEPT: "yes", KONTOR_SANDBOX_ID: row.id },
  });
  await terminateSandbox(host.app, paid.actor, row.id);
});

test("returns metrics with the lifetime of a running or ended sandbox, and never fails", async () => {
  const row = await create({ size: "medium" });
  host.clock.advance(10_000);
  const running = await metrics(host.app, paid.actor, row.id, undefined);
  expect(running).toMatchObject({
    sandbox_status: "running",
    cpu: { cores: 2, usage_cores: null },
    lifetime: { cpu_seconds: 0, gb_seconds: 40 },
    samples: [],
  });
  await terminateSandbox(host.app, paid.actor, row.id);
  host.clock.advance(10_000);
  expect(await metrics(host.app, paid.actor, row.id, undefined)).toMatchObject({
    sandbox_status: "terminated",
    lifetime: { gb_seconds: 40 },
  });
});

test("shows a preview token only in the record, and stores it encrypted", async () => {
  const row = await create({ preview_auth: true });
  const token = toSandbox(host.app, row).preview_auth_token ?? "";
  expect(token).toMatch(/^[A-Za-z0-9]{32}$/);
  expect(row.preview_token_sealed?.toString("latin1")).not.toContain(token);
  expect(toSandbox(host.app, await get(row.id)).preview_auth_token).toBe(token);
  await terminateSandbox(host.app, paid.actor, row.id);
});

test("names the short resource of a host without free capacity, and evicts no owner", async () => {
  const other = await testDatabase();
  const small = await testHost(other.db, { capacity: { machines: 1 } });
  const person = await personWithTier(other.db, "enterprise");
  const first = await createSandbox(small.app, person.actor, createInput());
  expect(await refusal(createSandbox(small.app, person.actor, createInput()))).toMatchObject({
    code: "no_capacity",
    status: 503,
    retry_after: expect.any(Number),
  });
  expect(await getSandbox(small.app, person.actor, first.id)).toMatchObject({ status: "running" });
  expect(await other.db.selectFrom("sandboxes").select("id").execute()).toHaveLength(1);
});

test("refuses a lifetime above the tier's maximum with timeout_too_long, also above the documented maximum", async () => {
  const tooLong = { code: "timeout_too_long", status: 400, limit: "max_timeout_seconds", allowed: 86_400 };
  const row = await create();
  for (const timeout_seconds of [86_401, 2 ** 40]) {
    expect(await refusal(create({ timeout_seconds }))).toEqual(tooLong);
    const { timeout_seconds: kept } = KeepAlive.parse({ timeout_seconds });
    expect(await refusal(keepAlive(host.app, paid.actor, row.id, kept))).toEqual(tooLong);
    const clone = SandboxFork.parse({ timeout_seconds });
    expect(await refusal(forkSandbox(host.app, paid.actor, row.id, clone))).toEqual(tooLong);
  }
  await terminateSandbox(host.app, paid.actor, row.id);
});
