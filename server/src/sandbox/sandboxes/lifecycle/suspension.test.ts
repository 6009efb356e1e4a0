/** Sandboxes of a suspended workspace: frozen with their state, and unchanged after the suspension. */
import { expect, test } from "vitest";
import { RuntimeError } from "@kontor/runtime/driver.ts";
import { systemActor } from "#accounts/activity/activity.ts";
import { setSuspended } from "#accounts/workspaces.ts";
import type { DomainError } from "#lib/errors.ts";
import { testDatabase } from "../../../../test/harness.ts";
import { createInput, personWithTier, testHost } from "#sandbox/testing/sandbox-app.ts";
import { createSandbox } from "./create.ts";
import { expireSandboxes, reclaimSnapshots } from "./expire.ts";
import { sandboxOwner } from "../machine-events/machine-owner.ts";
import { pauseSandbox } from "./pause.ts";
import { getSandbox, inside } from "../sandboxes.ts";
import { terminateSandbox } from "./terminate.ts";

const { db } = await testDatabase();
const host = await testHost(db);
const operator = systemActor("test");

type Person = Awaited<ReturnType<typeof personWithTier>>;

const look = () => host.app.machines.suspension.look({ sandbox: sandboxOwner(host.app) });
const workspaceOf = ({ actor }: Person) => actor.workspaces[0]!.id;
const suspend = (person: Person, isSuspended: boolean) =>
  setSuspended(host.app, operator, workspaceOf(person), isSuspended);

async function stateOf(machine: string | null): Promise<string | undefined> {
  return (await host.driver.list()).find(({ id }) => id === machine)?.state;
}

async function sandboxOf(person: Person) {
  return createSandbox(host.app, person.actor, createInput({ timeout_seconds: 60 }));
}

test("freezes the machines of a suspended workspace and of no other, and thaws them afterwards", async () => {
  const [late, other] = [await personWithTier(db, "enterprise"), await personWithTier(db, "enterprise")];
  const [row, neighbour] = [await sandboxOf(late), await sandboxOf(other)];
  await suspend(late, true);
  await look();
  expect(await stateOf(row.machine_id)).toBe("frozen");
  expect(await stateOf(neighbour.machine_id)).toBe("running");
  await suspend(late, false);
  await look();
  expect(await stateOf(row.machine_id)).toBe("running");
});

test("moves a deadline by the length of the suspension, and ends no sandbox during it", async () => {
  const person = await personWithTier(db, "enterprise");
  const row = await sandboxOf(person);
  await suspend(person, true);
  await look();
  host.clock.advance(3_600_000);
  await expireSandboxes(host.app);
  expect(await getSandbox(host.app, person.actor, row.id)).toMatchObject({ status: "running" });
  await suspend(person, false);
  await look();
  const after = await getSandbox(host.app, person.actor, row.id);
  expect(after.expires_at!.getTime() - row.expires_at!.getTime()).toBe(3_600_000);
  await expireSandboxes(host.app);
  expect(await getSandbox(host.app, person.actor, row.id)).toMatchObject({ status: "running" });
});

test("extends a paused sandbox's snapshot by the length of the suspension", async () => {
  const dayMs = 86_400_000;
  const person = await personWithTier(db, "free");
  const { id } = await sandboxOf(person);
  await pauseSandbox(host.app, person.actor, id);
  const status = async () => (await getSandbox(host.app, person.actor, id)).status;
  await suspend(person, true);
  await look();
  host.clock.advance(100 * dayMs);
  await reclaimSnapshots(host.app);
  expect(await status()).toBe("paused");
  await suspend(person, false);
  await look();
  await reclaimSnapshots(host.app);
  expect(await status()).toBe("paused");
  host.clock.advance(100 * dayMs);
  await reclaimSnapshots(host.app);
  expect(await status()).toBe("terminated");
});

test("refuses requests to a frozen machine, and deletes it", async () => {
  const person = await personWithTier(db, "enterprise");
  const row = await sandboxOf(person);
  await suspend(person, true);
  await look();
  const reached = inside(host.app, person.actor, row.id, (guest) => guest.ping());
  await expect(reached).rejects.toMatchObject({ code: "account_suspended" } satisfies Partial<DomainError>);
  await terminateSandbox(host.app, person.actor, row.id);
  await expect.poll(() => stateOf(row.machine_id)).toBeUndefined();
});

test("freezes at its start the machines that a dead server had only marked", async () => {
  const person = await personWithTier(db, "enterprise");
  const row = await sandboxOf(person);
  await suspend(person, true);
  host.driver.fail("freeze", new RuntimeError("failed", "no luck"));
  await look();
  expect(await stateOf(row.machine_id)).toBe("running");
  await host.restart();
  expect(await stateOf(row.machine_id)).toBe("frozen");
});

test("retries a machine whose freeze failed", async () => {
  const person = await personWithTier(db, "enterprise");
  const row = await sandboxOf(person);
  await suspend(person, true);
  host.driver.fail("freeze", new RuntimeError("failed", "no luck"));
  await look();
  await look();
  expect(await stateOf(row.machine_id)).toBe("frozen");
});

test("thaws at its start the machines whose suspension ended while the server was down", async () => {
  const person = await personWithTier(db, "enterprise");
  const row = await sandboxOf(person);
  await suspend(person, true);
  await look();
  host.clock.advance(60_000);
  await suspend(person, false);
  await host.restart();
  expect(await stateOf(row.machine_id)).toBe("running");
  const after = await getSandbox(host.app, person.actor, row.id);
  expect(after.expires_at!.getTime() - row.expires_at!.getTime()).toBe(60_000);
});

test("freezes no machine before the grace period is over", async () => {
  const patient = await testHost(db, { config: { suspensionGraceSeconds: "600" } });
  const person = await personWithTier(db, "enterprise");
  const row = await createSandbox(patient.app, person.actor, createInput({}));
  const glance = () => patient.app.machines.suspension.look({ sandbox: sandboxOwner(patient.app) });
  const state = async () => (await patient.driver.list()).find(({ id }) => id === row.machine_id)?.state;
  await setSuspended(patient.app, operator, workspaceOf(person), true);
  await glance();
  expect(await state()).toBe("running");
  patient.clock.advance(601_000);
  await glance();
  expect(await state()).toBe("frozen");
});
