import { beforeEach, expect, onTestFinished, test, vi } from "vitest";
import { FakeGuest } from "@kontor/runtime/fake/guest.ts";
import { progressOf, sweepImages } from "#builds/builds.ts";
import { logMaxBytes } from "#builds/log.ts";
import { Builds } from "#builds/run.ts";
import { onKillPoint } from "#lib/kill-points.ts";
import { DomainError } from "#lib/errors.ts";
import type { Actor } from "#accounts/actor.ts";
import { type GuestProcess, RuntimeError } from "@kontor/runtime/driver.ts";
import { testDatabase } from "../../../test/harness.ts";
import { runBuffered } from "../exec/exec.ts";
import { Exec } from "../exec/schema.ts";
import { getCommand } from "../commands/commands.ts";
import { feed } from "../events/feed.ts";
import { EventQuery } from "../events/schema.ts";
import { createSandbox } from "../sandboxes/lifecycle/create.ts";
import { forkSandbox } from "../sandboxes/lifecycle/fork.ts";
import { getSandbox } from "../sandboxes/sandboxes.ts";
import { SandboxCreate, SandboxFork, toSandbox } from "../sandboxes/schema.ts";
import { terminateSandbox } from "../sandboxes/lifecycle/terminate.ts";
import { takeSnapshot } from "../snapshots/take.ts";
import { startReceiver } from "../testing/receiver.ts";
import { createInput, personWithTier, testHost } from "../testing/sandbox-app.ts";
import { deliver } from "../webhooks/deliver.ts";
import { WebhookCreate } from "../webhooks/schema.ts";
import { register } from "../webhooks/webhooks.ts";
import { createTemplate } from "./create.ts";
import { templateBuilds } from "./finish.ts";
import { removeTemplate } from "./delete.ts";
import { followLogs, readLogs } from "./logs.ts";
import { TemplateCreate } from "./schema.ts";
import { assignTag, getTemplate, list, removeTag } from "./templates.ts";

const { db } = await testDatabase();
const host = await testHost(db, { config: { allowPrivateHosts: "127.0.0.0/8" }, poolCeiling: 2 });
const { actor } = await personWithTier(db, "payg");
const stranger = await personWithTier(db, "payg");

let counter = 0;
let name = "";
beforeEach(() => {
  name = `mine-${++counter}`;
});

const input = (change: Record<string, unknown> = {}) =>
  TemplateCreate.parse({ name, base_template: "debian-12", recipe: ["echo built > file"], ...change });
const create = (change: Record<string, unknown> = {}) => createTemplate(host.app, actor, input(change));
const build = () => host.builds.run(new AbortController().signal);
const createAndBuild = async (change: Record<string, unknown> = {}) => {
  const { id } = await create(change);
  await build();
  return get(id);
};
const get = (id: string) => getTemplate(host.app, actor, id);
const sandbox = (template: string, change: Record<string, unknown> = {}) =>
  createSandbox(host.app, actor, createInput({ template, ...change }));
const exec = async (id: string, command: string) =>
  (await runBuffered(host.app, actor, id, Exec.parse({ command }))).stdout;
const logOf = async (id: string) =>
  (await readLogs(host.app, actor, id, { after: 0, limit: 1000 })).items.map(({ text }) => text).join("");
const images = async () => (await host.driver.images()).map(({ id }) => id);
const events = async () =>
  (await feed(host.app, actor, EventQuery.parse({ event_type: ["template.build_finished"] }))).items;
const refusal = (work: Promise<unknown>) =>
  work.then(
    () => "none",
    (error: unknown) => (error instanceof DomainError ? `${error.status} ${error.code}` : error),
  );
const buildMachines = async () =>
  (await db.selectFrom("machines").select(["owner_kind", "desired"]).execute()).filter(
    (row) => row.owner_kind === "build" && row.desired !== "removed",
  );

test("keeps a suspended workspace's build queued until the suspension ends", async () => {
  const hold = (since: Date | null) =>
    db
      .updateTable("workspaces")
      .set({ held_since: since })
      .where("id", "=", actor.workspaces[0]!.id)
      .execute();
  const { id } = await create();
  await hold(host.clock.now());
  await build();
  expect(await buildMachines()).toEqual([]);
  expect(await get(id)).toMatchObject({ status: "building" });
  await hold(null);
  await build();
  expect(await get(id)).toMatchObject({ status: "ready" });
});

test("runs the steps of a build in order, and boots sandboxes from its image", async () => {
  const made = await create({ recipe: ["echo one > file", "echo two >> file; echo said; echo too >&2"] });
  expect(made).toMatchObject({
    status: "building",
    size_mb: null,
    built_at: null,
    tags: [],
    error_message: null,
  });
  expect(made.id).toMatch(/^tmpl_[a-z0-9]{20}$/);
  await build();
  expect(await get(made.id)).toMatchObject({
    status: "ready",
    tags: ["default"],
    size_mb: expect.any(Number),
    built_at: expect.any(String),
    contents: { debian: "12" },
    substituted: false,
  });
  const log = await logOf(made.id);
  expect(log).toMatch(/^Step 1 of 2: echo one > file\nStep 2 of 2: .*\n[^]*said\n/);
  expect(log).toContain("too\n");
  const box = await sandbox(name);
  expect(box).toMatchObject({ template: name, template_id: made.id });
  expect(await exec(box.id, "cat file")).toBe("one\ntwo\n");
  expect(await buildMachines()).toEqual([]);
});

test("records the version of a substituted base with its sandboxes, clones and snapshots", async () => {
  const { id } = await createAndBuild({ base_template: "python-3.12" });
  for (const template of ["python-3.12", id]) {
    const box = await sandbox(template);
    expect(toSandbox(host.app, box)).toMatchObject({ template, substituted: "3.13.5" });
    const [clone] = await forkSandbox(host.app, actor, box.id, SandboxFork.parse({}));
    expect(clone).toMatchObject({ template, substituted: "3.13.5" });
    const { id: snapshot } = await takeSnapshot(host.app, actor, box.id, {});
    const made = await createSandbox(host.app, actor, SandboxCreate.parse({ snapshot }));
    expect(toSandbox(host.app, made)).toMatchObject({ template, substituted: "3.13.5" });
  }
  expect(toSandbox(host.app, await sandbox("debian-12"))).toMatchObject({ substituted: null });
});

test("builds on an own template by id, by name and by tag, and keeps that base's image until the build ends", async () => {
  const base = await createAndBuild({ tags: ["v1"], recipe: ["echo base > file"] });
  for (const [number, base_template] of [base.id, name, `${name}:v1`].entries()) {
    const child = await create({ name: `${name}-${number}`, base_template, recipe: ["echo more >> file"] });
    expect(child).toMatchObject({ base_template, base_template_id: base.id });
    if (number === 2) {
      await removeTemplate(host.app, actor, base.id);
      await sweepImages(host.app);
      expect(await images()).toContain(base.id);
    }
    await build();
    const box = await sandbox(child.id);
    expect(await exec(box.id, "cat file")).toBe("base\nmore\n");
    await terminateSandbox(host.app, actor, box.id);
  }
  await sweepImages(host.app);
  expect(await images()).not.toContain(base.id);
});

test("refuses a base that is another workspace's, unknown, not ready, or too deep", async () => {
  const base = await createAndBuild();
  const theirs = (base_template: string) =>
    createTemplate(host.app, stranger.actor, input({ name: "theirs", base_template })).catch(
      (error: DomainError) => `${error.code} ${error.detail}`,
    );
  for (const reference of [base.id, name, `${name}:default`]) {
    const refused = await theirs(reference);
    expect(refused).toMatch(/^invalid_request base_template: unknown template .*known are .*debian-12/);
    expect(refused).not.toMatch(new RegExp(`known are .*${name}`));
  }
  const building = await create({ base_template: base.id });
  expect(await refusal(create({ base_template: building.id }))).toBe("409 template_not_ready");
  await build();
  await db.updateTable("templates").set({ depth: 20 }).where("id", "=", building.id).execute();
  expect(await refusal(create({ base_template: building.id }))).toBe("400 invalid_request");
});

test("fails the build at a failed step, with its number, command and last output as the reason", async () => {
  const before = await images();
  const { id } = await create({ recipe: ["true", "echo doomed >&2; exit 7", "touch never"] });
  await build();
  const failed = await get(id);
  expect(failed).toMatchObject({ status: "failed", tags: [], built_at: null, size_mb: null });
  expect(failed.error_message).toBe(
    "Step 2 of 3 failed with exit code 7: echo doomed >&2; exit 7. Last output:\ndoomed",
  );
  expect(await logOf(id)).not.toContain("Step 3");
  expect(await images()).toEqual(before);
  expect(await buildMachines()).toEqual([]);
  expect(await refusal(sandbox(id))).toBe("409 template_not_ready");
  expect(await refusal(assignTag(host.app, actor, id, "x"))).toBe("409 template_not_ready");
});

test("fails the build when its image cannot be captured, with the reason", async () => {
  host.driver.fail("captureImage", new RuntimeError("image_failed", "it holds too many files"));
  const { id } = await create();
  await build();
  expect(await get(id)).toMatchObject({ status: "failed", error_message: "It holds too many files." });
});

const never = new Promise<never>(() => {});
const endless: GuestProcess = {
  pid: 1,
  output: { [Symbol.asyncIterator]: () => ({ next: () => never }) },
  exit: never,
  writeStdin: () => never,
  endStdin: () => {},
  signal: () => {},
  close: () => {},
};

test.each([
  ["does not end the step in time", async () => endless],
  ["does not answer the start of a step", () => never],
])("fails a build at its deadline when the guest %s", async (_, spawn) => {
  const spawned = vi.spyOn(FakeGuest.prototype, "spawn").mockImplementation(spawn);
  onTestFinished(() => spawned.mockRestore());
  const { id } = await create({ recipe: ["sleep 600"] });
  await shortBuild();
  expect(await get(id)).toMatchObject({
    status: "failed",
    error_message: expect.stringMatching(
      /^Step 1 of 1 was still running when the build's .* minutes were over/,
    ),
  });
  expect(await buildMachines()).toEqual([]);
});

/** Builds with a time limit of 60 ms. */
function shortBuild(): Promise<void> {
  const app = { ...host.app, config: { ...host.app.config, buildTimeoutMinutes: 0.001 } };
  return new Builds(app, { template: templateBuilds(host.app) }).run(new AbortController().signal);
}

test("emits an event at the end of a build with its owner and result, in the feed and to webhooks", async () => {
  const receiver = await startReceiver();
  const hook = await register(
    host.app,
    actor,
    WebhookCreate.parse({ url: receiver.url, event_types: ["template.build_finished"] }),
  );
  const ready = await createAndBuild();
  const failed = await createAndBuild({ recipe: ["exit 1"] });
  const [second, first] = await events();
  expect(first).toMatchObject({
    sandbox_id: null,
    outcome: "ok",
    detail: { template_id: ready.id, name, status: "ready", error_message: null, by: "platform" },
  });
  expect(second).toMatchObject({ outcome: "failed", detail: { template_id: failed.id, status: "failed" } });
  await deliver(host.app, hook.id, new AbortController().signal);
  await receiver.close();
  const data = receiver.received.map(({ json }) => json.data);
  expect(data.find((each) => each["template_id"] === failed.id)).toEqual({
    template_id: failed.id,
    name,
    status: "failed",
    error_message: failed.error_message,
    sandbox_id: null,
    outcome: "failed",
    summary: `The build of template ${name} failed.`,
    detail: second?.detail,
  });
});

test("assigns each tag to one build: `default` to the first build, and to a later one on request", async () => {
  const first = await createAndBuild({ recipe: ["echo 1 > file"], tags: ["v1", "stable", "v1"] });
  expect(first.tags).toEqual(["default", "stable", "v1"]);
  const second = await createAndBuild({ recipe: ["echo 2 > file"], tags: ["stable"] });
  expect(second.tags).toEqual(["stable"]);
  expect((await get(first.id)).tags).toEqual(["default", "v1"]);
  const of = async (template: string) => exec((await sandbox(template)).id, "cat file");
  expect(await of(name)).toBe("1\n");
  expect(await of(`${name}:stable`)).toBe("2\n");
  expect(await of(`${name}:v1`)).toBe("1\n");
  expect(await of(second.id)).toBe("2\n");
  expect((await assignTag(host.app, actor, second.id, "default")).tags).toEqual(["default", "stable"]);
  expect(await of(name)).toBe("2\n");
  await removeTag(host.app, actor, second.id, "stable");
  expect(await refusal(removeTag(host.app, actor, second.id, "stable"))).toBe("404 tag_not_found");
  expect(await refusal(sandbox(`${name}:stable`))).toBe("400 invalid_request");
  expect(await refusal(sandbox(`${name}:none:such`))).toBe("400 invalid_request");
});

test("shows a template only to its workspace", async () => {
  const { id } = await createAndBuild();
  const { app } = host;
  expect(await refusal(getTemplate(app, stranger.actor, id))).toBe("404 template_not_found");
  expect(await refusal(removeTemplate(app, stranger.actor, id))).toBe("404 template_not_found");
  expect(await refusal(assignTag(app, stranger.actor, id, "x"))).toBe("404 template_not_found");
  expect(await refusal(readLogs(app, stranger.actor, id, { after: 0, limit: 1 }))).toBe(
    "404 template_not_found",
  );
  expect((await list(app, stranger.actor, { limit: 50 })).items).toEqual([]);
  for (const template of [id, name, `${name}:default`]) {
    const theirs = createSandbox(app, stranger.actor, createInput({ template }));
    expect(await refusal(theirs)).toBe("400 invalid_request");
  }
  // Another workspace may use the same name.
  const own = await createTemplate(app, stranger.actor, input());
  await build();
  expect((await getTemplate(app, stranger.actor, own.id)).tags).toEqual(["default"]);
  expect((await get(id)).tags).toEqual(["default"]);
});

test("rejects an invalid build in the request itself", async () => {
  const free = await personWithTier(db, "free");
  expect(await refusal(createTemplate(host.app, free.actor, input()))).toBe("403 plan_limit");
  expect(await refusal(create({ base_template: "fedora" }))).toBe("400 invalid_request");
  for (const change of [
    { name: "debian-12" },
    { name: "code-interpreter" },
    { name: "tmpl_x" },
    { name: "A" },
    { name: "a" },
    { name: "a.b" },
    { recipe: [] },
    { recipe: [""] },
    { recipe: ["a\0b"] },
    { recipe: ["\ud800"] },
    { network: "off" },
    { tags: ["a:b"] },
  ])
    expect(TemplateCreate.safeParse({ ...input(), ...change }).success, JSON.stringify(change)).toBe(false);
});

test("lists templates page by page, newest first", async () => {
  const person = await personWithTier(db, "enterprise");
  for (const n of [1, 2, 3]) await createTemplate(host.app, person.actor, input({ name: `page-${n}` }));
  const page = await list(host.app, person.actor, { limit: 2 });
  const rest = await list(host.app, person.actor, { limit: 2, cursor: page.next_cursor ?? "" });
  expect([...page.items, ...rest.items].map((each) => each.name).toSorted()).toEqual([
    "page-1",
    "page-2",
    "page-3",
  ]);
  expect(rest.next_cursor).toBeNull();
  await build();
});

test("removes a deleted template's image after its last sandbox", async () => {
  const { id } = await createAndBuild();
  const box = await sandbox(name);
  await removeTemplate(host.app, actor, id);
  expect(await refusal(get(id))).toBe("404 template_not_found");
  expect(await refusal(sandbox(id))).toBe("400 invalid_request");
  expect(await exec(box.id, "cat file")).toBe("built\n");
  expect(await images()).toContain(id);
  await sweepImages(host.app);
  expect(await images()).toContain(id);
  await terminateSandbox(host.app, actor, box.id);
  await expect
    .poll(async () => {
      await sweepImages(host.app);
      return images();
    })
    .not.toContain(id);
});

test("leaves nothing and emits no event when a template is deleted during its build", async () => {
  const before = (await events()).length;
  const { id } = await create({ recipe: ["echo up > up; sleep 30"] });
  const running = build();
  await expect.poll(() => logOf(id)).toContain("Step 1");
  await removeTemplate(host.app, actor, id);
  await running;
  expect(await images()).not.toContain(id);
  expect(await buildMachines()).toEqual([]);
  expect((await events()).length).toBe(before);
});

test("runs no step of a template that is deleted between two state changes", async () => {
  const { id } = await create({ recipe: ["echo ran"] });
  onKillPoint(
    async (point) => void (point === "build.started" && (await removeTemplate(host.app, actor, id))),
  );
  onTestFinished(() => onKillPoint(undefined));
  const spawned = vi.spyOn(FakeGuest.prototype, "spawn");
  await build();
  expect(spawned).not.toHaveBeenCalled();
  spawned.mockRestore();
  expect(await buildMachines()).toEqual([]);
});

test("never starts the build of a template that is deleted while it waits", async () => {
  const { id } = await create();
  await removeTemplate(host.app, actor, id);
  await build();
  expect(await images()).not.toContain(id);
});

test("names the workspace's own templates when a template is unknown", async () => {
  await createAndBuild();
  const unknown = (who: Actor) =>
    createSandbox(host.app, who, createInput({ template: `${name}:nope` })).catch(
      (error: DomainError) => error.detail,
    );
  expect(await unknown(actor)).toMatch(new RegExp(`known are .*debian-12.*, ${name}[,.]`));
  expect(await unknown(stranger.actor)).not.toMatch(new RegExp(`known are .*${name}`));
});

test("makes a create wait for a running build", async () => {
  const { id } = await create();
  const waiting = sandbox(id);
  await build();
  expect((await waiting).template_id).toBe(id);
});

test("runs no more builds at once than configured, and the others in turn", async () => {
  const ids = [];
  for (let n = 0; n < 5; n += 1) ids.push((await create({ recipe: ["sleep 0.1"] })).id);
  let most = 0;
  const watch = setInterval(
    () => void buildMachines().then(({ length }) => (most = Math.max(most, length))),
    10,
  );
  await Promise.all(ids.map(() => build()));
  clearInterval(watch);
  for (const id of ids) expect((await get(id)).status).toBe("ready");
  expect(most).toBeGreaterThan(0);
  expect(most).toBeLessThanOrEqual(host.app.config.buildConcurrency);
});

test("builds a payer's single template before another payer's twenty waiting templates", async () => {
  // Payers without an earlier build.
  const people = [await personWithTier(db, "payg"), await personWithTier(db, "payg")] as const;
  const busy = [];
  for (let n = 0; n < 20; n += 1) {
    busy.push((await createTemplate(host.app, people[0].actor, input())).id);
    host.clock.advance(1);
  }
  const other = await createTemplate(host.app, people[1].actor, input());
  onKillPoint(async (at) => void (at === "build.captured" && host.clock.advance(1)));
  onTestFinished(() => onKillPoint(undefined));
  await build();
  const rows = await db
    .selectFrom("builds")
    .select("id")
    .where("id", "in", [...busy, other.id])
    .orderBy("started_at")
    .execute();
  expect(rows.slice(0, 3).map(({ id }) => id)).toEqual([busy[0], other.id, busy[1]]);
});

test("restarts the build of a dead server, but not after three dead servers", async () => {
  const { id } = await create();
  const doomed = await create();
  await db.updateTable("builds").set({ status: "running", attempts: 1 }).where("id", "=", id).execute();
  await db
    .updateTable("builds")
    .set({ status: "running", attempts: 3 })
    .where("id", "=", doomed.id)
    .execute();
  await host.restart();
  expect((await get(doomed.id)).error_message).toContain("ended 3 times");
  expect(await progressOf(db, id)).toEqual({ fraction: 0, step: "waiting" });
  await build();
  expect((await get(id)).status).toBe("ready");
});

test("returns the builds of a stopping server to the queue, without counting an attempt", async () => {
  const { id } = await create({ recipe: ["echo up; sleep 30"] });
  const stop = new AbortController();
  const running = host.builds.run(stop.signal);
  await expect.poll(() => logOf(id)).toContain("up");
  stop.abort();
  await running;
  const row = await db.selectFrom("builds").selectAll().where("id", "=", id).executeTakeFirstOrThrow();
  expect(row).toMatchObject({ status: "queued", attempts: 0 });
  expect(await buildMachines()).toEqual([]);
  await removeTemplate(host.app, actor, id);
});

test("limits the stored output of a build, and uses its end for the reason", async () => {
  const { id } = await create({ recipe: ["yes 0123456789 | head -c 6000000; echo the end; exit 1"] });
  await build();
  const log = await logOf(id);
  expect(log.length).toBeGreaterThan(logMaxBytes * 0.9);
  expect(log.length).toBeLessThan(logMaxBytes * 1.1);
  expect(log).toContain("(more output is not kept)");
  expect((await readLogs(host.app, actor, id, { after: 0, limit: 1 })).truncated).toBe(true);
  const { error_message } = await get(id);
  expect(error_message).toMatch(/the end$/);
  expect(error_message!.length).toBeLessThan(4096);
});

test("streams the log to a follower, and then the result", async () => {
  const { id } = await create({ recipe: ["echo one", "echo two; exit 3"] });
  const seen: unknown[] = [];
  const reading = (async () => {
    const { signal } = new AbortController();
    for await (const { data } of followLogs(host.app, actor, id, { after: 0, signal })) seen.push(data);
  })();
  await build();
  await reading;
  expect(seen.at(-1)).toMatchObject({
    kind: "finished",
    status: "failed",
    error_message: expect.any(String),
  });
  expect(seen.slice(0, -1)).toContainEqual(expect.objectContaining({ kind: "log", step: 1, text: "one\n" }));
});

test("sends the whole log to each of many followers", async () => {
  const { id } = await create({ recipe: ["echo one", "sleep 0.5; echo two"] });
  const { signal } = new AbortController();
  const readers = Array.from({ length: 20 }, () =>
    Array.fromAsync(followLogs(host.app, actor, id, { after: 0, signal })),
  );
  await build();
  const [first, ...others] = await Promise.all(readers);
  expect(first!.at(-1)!.data).toMatchObject({ kind: "finished", status: "ready" });
  expect(first!.map(({ data }) => ("text" in data ? data.text : "")).join("")).toContain("two\n");
  for (const other of others) expect(other).toEqual(first);
});

test("runs the start command once in every sandbox, under the id that the create returned", async () => {
  const made = await create({ start_command: 'echo "started by $WHO" > started' });
  await build();
  expect(made.start_command_id).toMatch(/^cmd_/);
  expect(await get(made.id)).not.toHaveProperty("start_command_id");
  const box = await sandbox(name, { env: { WHO: "me" } });
  expect(box.start_command_id).toBe(made.start_command_id);
  const command = () => getCommand(host.app, actor, box.id, made.start_command_id ?? "");
  await expect.poll(async () => (await command()).status).toBe("exited");
  expect(await exec(box.id, "cat started")).toBe("started by me\n");
  expect((await getSandbox(host.app, actor, box.id)).start_command_id).toBe(made.start_command_id);
});

test("adjusts warm machines to a template's use, and removes them with the template", async () => {
  const { id } = await createAndBuild();
  await sandbox(name);
  const warm = async () =>
    (
      await db
        .selectFrom("machines")
        .select(["image_id", "desired"])
        .where("owner_kind", "=", "pool")
        .execute()
    ).filter((row) => row.image_id === id && row.desired === "frozen").length;
  await expect.poll(warm).toBe(1);
  const box = await sandbox(name);
  expect(await exec(box.id, "cat file")).toBe("built\n");
  await removeTemplate(host.app, actor, id);
  await expect.poll(warm).toBe(0);
});
