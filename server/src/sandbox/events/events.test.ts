import { expect, test } from "vitest";
import type { Db } from "#schema.ts";
import { testDatabase } from "../../../test/harness.ts";
import { createSandbox } from "../sandboxes/lifecycle/create.ts";
import { expireSandboxes } from "../sandboxes/lifecycle/expire.ts";
import { resumeSandbox } from "../sandboxes/lifecycle/resume.ts";
import { pauseSandbox } from "../sandboxes/lifecycle/pause.ts";
import { endSandbox, terminateSandbox } from "../sandboxes/lifecycle/terminate.ts";
import { createInput, personWithTier, testHost } from "../testing/sandbox-app.ts";
import { recordEvent } from "./events.ts";
import { feed, forgetEvents } from "./feed.ts";
import { EventQuery } from "./schema.ts";

const { db } = await testDatabase();
const host = await testHost(db);
const { actor, workspace } = await personWithTier(db, "enterprise");
const stranger = await personWithTier(db, "enterprise");

const create = async (input: Record<string, unknown> = {}) =>
  (await createSandbox(host.app, actor, createInput(input))).id;
const read = (query: Record<string, unknown> = {}, as = actor) => feed(host.app, as, EventQuery.parse(query));
const names = async (sandbox: string) =>
  (await read({ sandbox_id: sandbox })).items.map(({ event }) => event);
const fact = (tx: Db, summary: string) =>
  recordEvent(tx, {
    workspaceId: workspace.id,
    event: "volume.moved",
    sandboxId: null,
    at: host.clock.now(),
    outcome: "ok",
    summary,
    detail: {},
    actor,
  });

test("emits one event per action of a caller, newest first, with the actor", async () => {
  const id = await create();
  await pauseSandbox(host.app, actor, id);
  await resumeSandbox(host.app, actor, id);
  await terminateSandbox(host.app, actor, id);
  await terminateSandbox(host.app, actor, id);
  expect(await names(id)).toEqual([
    "sandbox.terminated",
    "sandbox.resumed",
    "sandbox.paused",
    "sandbox.created",
  ]);
  const [last, , paused] = (await read({ sandbox_id: id })).items;
  expect(last).toMatchObject({
    id: expect.stringMatching(/^evt_\d{16}$/),
    sandbox_id: id,
    outcome: "ok",
    summary: "Terminated: it was deleted.",
    detail: { by: "caller", reason: "requested", from: "running" },
    actor: { kind: "api_token", id: actor.id, label: actor.label },
  });
  expect(paused?.detail).toMatchObject({ from: "running", snapshot_id: expect.stringMatching(/^snap_/) });
});

test("emits only `sandbox.expired` at a sandbox's deadline, whether the sandbox is terminated or paused", async () => {
  const [killed, paused] = [
    await create({ timeout_seconds: 10 }),
    await create({ timeout_seconds: 10, on_timeout: "pause" }),
  ];
  host.clock.advance(11_000);
  await expireSandboxes(host.app);
  expect(await names(killed)).toEqual(["sandbox.expired", "sandbox.created"]);
  expect(await names(paused)).toEqual(["sandbox.expired", "sandbox.created"]);
  const to = async (id: string) => (await read({ sandbox_id: id })).items[0]?.detail;
  expect(await to(killed)).toMatchObject({ by: "platform", to: "terminated" });
  expect(await to(paused)).toMatchObject({ by: "platform", to: "paused" });
});

test("emits for a sandbox with a lost machine that the platform terminated it, and that it failed", async () => {
  const id = await create();
  await endSandbox(host.app, { id, reason: "host_lost" });
  expect((await read({ sandbox_id: id })).items[0]).toMatchObject({
    event: "sandbox.terminated",
    outcome: "failed",
    detail: { by: "platform", reason: "host_lost" },
  });
});

test("shows an event whose transaction commits late to a reader who already read later events", async () => {
  const began = Promise.withResolvers<void>();
  const mayEnd = Promise.withResolvers<void>();
  const late = db.transaction().execute(async (tx) => {
    await fact(tx, "late");
    began.resolve();
    await mayEnd.promise;
  });
  await began.promise;
  await fact(db, "early");
  const [newest] = (await read()).items;
  expect(newest?.summary).toBe("early");
  mayEnd.resolve();
  await late;
  const next = (await read({ since: newest?.id })).items;
  expect(next.map(({ summary }) => summary)).toEqual(["late"]);
  expect((next[0]?.id ?? "") > (newest?.id ?? "")).toBe(true);
});

test("gives a polling reader every event exactly once while many writers commit", async () => {
  let since = (await read()).items[0]?.id;
  const seen: string[] = [];
  const poll = async () => {
    const got: string[] = [];
    let before: string | undefined;
    const [first] = (await read({ since, limit: 1 })).items;
    do {
      const page = await read({ since, before, limit: 7 });
      got.push(...page.items.filter(({ id }) => id <= (first?.id ?? "")).map(({ summary }) => summary ?? ""));
      before = page.next_before ?? undefined;
    } while (before !== undefined);
    since = first?.id ?? since;
    seen.push(...got.toReversed());
  };
  const writing = Promise.all(
    Array.from({ length: 60 }, (_, n) => db.transaction().execute((tx) => fact(tx, `n${n}`))),
  );
  for (let polls = 0; polls < 10; polls += 1) await poll();
  await writing;
  await poll();
  expect(seen.toSorted()).toEqual(Array.from({ length: 60 }, (_, n) => `n${n}`).toSorted());
});

test("pages the feed backwards, filters it by name and sandbox, and shows only events of its owner", async () => {
  const id = await create();
  await terminateSandbox(host.app, actor, id);
  const pages: string[] = [];
  let before: string | undefined;
  do {
    const page = await read({ sandbox_id: id, limit: 1, before });
    pages.push(...page.items.map(({ event }) => event));
    before = page.next_before ?? undefined;
  } while (before !== undefined);
  expect(pages).toEqual(["sandbox.terminated", "sandbox.created"]);
  const some = await read({ event_type: ["sandbox.created", "volume.moved"] });
  expect(new Set(some.items.map(({ event }) => event))).toEqual(new Set(["sandbox.created", "volume.moved"]));
  expect((await read({}, stranger.actor)).items).toEqual([]);
  await expect(read({ since: "evt_x" })).rejects.toMatchObject({ status: 400, code: "invalid_request" });
});

test("deletes events after 30 days, and does not reuse their numbers", async () => {
  const last = (await read()).items[0]?.id ?? "";
  host.clock.advance(31 * 24 * 3_600_000);
  await forgetEvents(host.app);
  expect((await read()).items).toEqual([]);
  await fact(db, "new");
  expect((await read({ since: last })).items.map(({ summary }) => summary)).toEqual(["new"]);
});
