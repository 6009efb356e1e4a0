import { afterAll, expect, test } from "vitest";
import { testDatabase } from "../../../../test/harness.ts";
import { feed } from "#sandbox/events/feed.ts";
import { EventQuery } from "#sandbox/events/schema.ts";
import { createInput, personWithTier, testHost } from "#sandbox/testing/sandbox-app.ts";
import { createSandbox } from "../lifecycle/create.ts";
import { DeniedEgress } from "./denied-egress.ts";
import { terminateSandbox } from "../lifecycle/terminate.ts";

const { db } = await testDatabase();
const host = await testHost(db);
const { actor } = await personWithTier(db, "enterprise");
const events = new DeniedEgress(host.app);
afterAll(() => events.stop());

const deny = (machine: string | null, target: string, code = "not_allowed") =>
  host.app.machines.denials.add(machine ?? "", { target, code });
const listEvents = async (id: string) => {
  const query = EventQuery.parse({ sandbox_id: id, event_type: ["sandbox.egress_denied"] });
  return (await feed(host.app, actor, query)).items;
};

test("collects a sandbox's denials in one event, with the request that allows the host", async () => {
  const { id, machine_id: machine } = await createSandbox(host.app, actor, createInput());
  deny(machine, "example.com:443");
  deny(machine, "example.com:443");
  deny(machine, "10.0.0.1:22", "address");
  deny("m_of_nobody", "nobody.test:443");
  await events.flush({ force: true });
  expect(await listEvents(id)).toMatchObject([
    {
      outcome: "failed",
      summary: `Denied a connection to example.com:443 and 1 more. To allow example.com, send PATCH /v1/sandboxes/${id} with an allow_domains list that has it.`,
      detail: {
        by: "platform",
        egress_denied: ["example.com:443", "10.0.0.1:22"],
        allow_with: { method: "PATCH", path: `/v1/sandboxes/${id}`, add_to_allow_domains: ["example.com"] },
      },
    },
  ]);
  deny(machine, "example.com:443");
  await events.flush({ force: true });
  expect(await listEvents(id)).toHaveLength(1);
});

test("limits the targets of an event and of a machine, and emits at most one event a minute", async () => {
  const { id, machine_id: machine } = await createSandbox(host.app, actor, createInput());
  for (let n = 0; n < 50; n += 1) deny(machine, `n${n}.test:443`);
  await events.flush({ force: true });
  deny(machine, "later.test:443");
  await events.flush();
  expect((await listEvents(id)).map(({ detail }) => (detail["egress_denied"] as string[]).length)).toEqual([
    20,
  ]);
  for (let round = 0; round < 20; round += 1) {
    for (let n = 0; n < 20; n += 1) deny(machine, `r${round}n${n}.test:443`);
    await events.flush({ force: true });
  }
  expect(await listEvents(id)).toHaveLength(10);
});

test("emits the denials of a sandbox that ends before the event is due", async () => {
  const { id, machine_id: machine } = await createSandbox(host.app, actor, createInput());
  deny(machine, "last.test:443");
  await terminateSandbox(host.app, actor, id);
  await expect.poll(async () => (await listEvents(id)).length, { timeout: 10_000 }).toBe(1);
});
