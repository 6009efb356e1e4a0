import { beforeEach, expect, onTestFinished, test, vi } from "vitest";
import { FakeGuest } from "@kontor/runtime/fake/guest.ts";
import { progressOf, sweepImages } from "#builds/builds.ts";
import { onKillPoint } from "#lib/kill-points.ts";
import { DomainError } from "#lib/errors.ts";
import { RuntimeError } from "@kontor/runtime/driver.ts";
import { testDatabase } from "../../../test/harness.ts";
import { startCommand } from "../commands/commands.ts";
import { CommandStart } from "../commands/schema.ts";
import { runBuffered as runCode } from "../code/code.ts";
import { Code } from "../code/schema.ts";
import { runBuffered } from "../exec/exec.ts";
import { Exec } from "../exec/schema.ts";
import { startPty } from "../pty/pty.ts";
import { PtyStart } from "../pty/schema.ts";
import { createSandbox } from "../sandboxes/lifecycle/create.ts";
import { forkSandbox } from "../sandboxes/lifecycle/fork.ts";
import { pauseSandbox } from "../sandboxes/lifecycle/pause.ts";
import { resumeSandbox } from "../sandboxes/lifecycle/resume.ts";
import { SandboxCreate, SandboxFork } from "../sandboxes/schema.ts";
import { terminateSandbox } from "../sandboxes/lifecycle/terminate.ts";
import { takeSnapshot } from "../snapshots/take.ts";
import { createInput, personWithTier, testHost } from "../testing/sandbox-app.ts";
import { createTemplate } from "./create.ts";
import { removeTemplate } from "./delete.ts";
import { readLogs } from "./logs.ts";
import { TemplateCreate } from "./schema.ts";
import { getTemplate } from "./templates.ts";

const { db } = await testDatabase();
const host = await testHost(db, { poolCeiling: 2 });
const { actor } = await personWithTier(db, "payg");
const stranger = await personWithTier(db, "payg");

let counter = 0;
let name = "";
beforeEach(() => {
  name = `made-${++counter}`;
});

const text = `FROM debian:12
RUN echo built > /etc/built
ENV COLOR=red
WORKDIR /tmp
USER root
`;

const input = (change: Record<string, unknown> = {}) =>
  TemplateCreate.parse({ name, dockerfile: text, ...change });
const create = (change: Record<string, unknown> = {}) => createTemplate(host.app, actor, input(change));
const build = () => host.builds.run(new AbortController().signal);
const get = (id: string) => getTemplate(host.app, actor, id);
const createAndBuild = async (change: Record<string, unknown> = {}) => {
  const { id } = await create(change);
  await build();
  return get(id);
};
const sandbox = (template: string, change: Record<string, unknown> = {}) =>
  createSandbox(host.app, actor, createInput({ template, ...change }));
const exec = async (id: string, command: string) =>
  (await runBuffered(host.app, actor, id, Exec.parse({ command }))).stdout;
const logOf = async (id: string) =>
  (await readLogs(host.app, actor, id, { after: 0, limit: 1000 })).items.map((each) => each.text).join("");
const images = async () => (await host.driver.images()).map(({ id }) => id);
const refusal = (work: Promise<unknown>) =>
  work.then(
    () => "none",
    (error: unknown) => (error instanceof DomainError ? `${error.code} ${error.detail}` : error),
  );
const buildMachines = async () =>
  (await db.selectFrom("machines").select(["owner_kind", "desired"]).execute()).filter(
    (row) => row.owner_kind === "build" && row.desired !== "removed",
  );

test("builds a Dockerfile, and boots sandboxes with its ENV, WORKDIR and USER", async () => {
  const made = await create({ tags: ["v1"] });
  expect(made).toMatchObject({
    status: "building",
    base_template: "debian:12",
    base_template_id: null,
    recipe: [],
    dockerfile: text,
    image: null,
    network: "open",
    cwd: null,
    user: null,
  });
  await build();
  expect(await get(made.id)).toMatchObject({
    status: "ready",
    error_message: null,
    tags: ["default", "v1"],
    size_mb: 1,
    cwd: "/tmp",
    user: "root",
  });
  expect(await logOf(made.id)).toContain("STEP 2/5: RUN echo built > /etc/built\n");
  const box = await sandbox(name);
  expect(box).toMatchObject({ template: name, template_id: made.id });
  expect(await exec(box.id, "echo $COLOR; pwd")).toMatch(/^red\n.*\/tmp\n$/);
  expect(await buildMachines()).toEqual([]);
});

test("numbers the pieces of the log by instruction", async () => {
  const { id } = await createAndBuild();
  const { items } = await readLogs(host.app, actor, id, { after: 0, limit: 1000 });
  expect(items.find((each) => each.text.includes("STEP 3/5"))?.step).toBe(3);
});

test("reports the instruction in progress while the image is built", async () => {
  const { id } = await create();
  onKillPoint(async (point) => {
    if (point !== "app_build.made") return;
    await expect.poll(() => progressOf(db, id)).toEqual({ fraction: 0.8, step: "USER root" });
  });
  onTestFinished(() => onKillPoint(undefined));
  await build();
  expect(await get(id)).toMatchObject({ status: "ready" });
});

test("builds a template of an image, like a Dockerfile of one FROM", async () => {
  const made = await createAndBuild({ dockerfile: undefined, image: "python:3.13-slim", network: "open" });
  expect(made).toMatchObject({
    status: "ready",
    image: "python:3.13-slim",
    base_template: "python:3.13-slim",
    dockerfile: null,
    recipe: [],
    user: null,
    cwd: null,
  });
  expect(await logOf(made.id)).toContain("FROM python:3.13-slim");
  expect(await exec((await sandbox(made.id)).id, "echo runs")).toBe("runs\n");
});

test("starts commands, terminals and the start command with the image's defaults, which the request may override", async () => {
  const spied = vi.spyOn(FakeGuest.prototype, "startCommand");
  onTestFinished(() => spied.mockRestore());
  const starts = () => spied.mock.calls.splice(0).map(([{ cwd, user }]) => ({ cwd, user }));
  const { id: template } = await createAndBuild({ start_command: "true" });
  const { id } = await sandbox(template);
  await startCommand(host.app, actor, id, CommandStart.parse({ command: "true" }));
  await startPty(host.app, actor, id, PtyStart.parse({ command: "true" }));
  await startCommand(host.app, actor, id, CommandStart.parse({ command: "true", cwd: "/", user: "0" }));
  const image = { cwd: "/tmp", user: "root" };
  expect(starts()).toEqual([image, image, image, { cwd: "/", user: "0" }]);
  const other = await sandbox("debian-12");
  await startCommand(host.app, actor, other.id, CommandStart.parse({ command: "true" }));
  expect(starts()).toEqual([{ cwd: undefined, user: undefined }]);
});

test("keeps the defaults through pause and resume, in forks and in sandboxes of a snapshot", async () => {
  const { id: template } = await createAndBuild();
  const box = await sandbox(template);
  await pauseSandbox(host.app, actor, box.id);
  await resumeSandbox(host.app, actor, box.id);
  const [clone] = await forkSandbox(host.app, actor, box.id, SandboxFork.parse({}));
  const { id: snapshot } = await takeSnapshot(host.app, actor, box.id, {});
  const restored = await createSandbox(host.app, actor, SandboxCreate.parse({ snapshot }));
  for (const { id } of [box, clone!, restored]) expect(await exec(id, "pwd")).toMatch(/\/tmp\n$/);
});

test("builds a recipe on a template of a Dockerfile that is deleted before the build, and keeps its defaults", async () => {
  const base = await createAndBuild();
  const child = await create({
    name: `${name}-child`,
    dockerfile: undefined,
    base_template: base.id,
    recipe: ["echo child > file"],
  });
  expect(child).toMatchObject({ base_template_id: base.id, dockerfile: null, cwd: "/tmp", user: "root" });
  await removeTemplate(host.app, actor, base.id);
  await sweepImages(host.app);
  expect(await images()).toContain(base.id);
  await build();
  expect(await get(child.id)).toMatchObject({ status: "ready", error_message: null });
  await expect
    .poll(async () => {
      await sweepImages(host.app);
      return images();
    })
    .not.toContain(base.id);
  const box = await sandbox(child.id);
  expect(await exec(box.id, "pwd; echo $COLOR")).toMatch(/\/tmp\nred\n$/);
});

test.each([
  ["no source", {}, /^base_template: is required, or dockerfile, or image/],
  ["a base without a recipe", { base_template: "debian-12" }, /^recipe: is required/],
  [
    "a Dockerfile and an image",
    { dockerfile: text, image: "debian:12" },
    /^image: cannot be sent with dockerfile/,
  ],
  [
    "a Dockerfile and a base",
    { dockerfile: text, base_template: "debian-12" },
    /^base_template: cannot be sent with dockerfile/,
  ],
  [
    "an image and a recipe",
    { image: "debian:12", recipe: ["true"] },
    /^recipe: cannot be sent with image.* RUN/,
  ],
  [
    "a Dockerfile that is too large",
    { dockerfile: `FROM debian:12\n#${"x".repeat(65_536)}` },
    /^dockerfile: /,
  ],
  ["an empty Dockerfile", { dockerfile: "" }, /^dockerfile: /],
  ["a NUL in the Dockerfile", { dockerfile: "FROM debian:12\0" }, /^dockerfile: /],
  ["an image with an option", { image: "--platform=x debian:12" }, /^image: must be a reference/],
  ["an image of two lines", { image: "debian:12\nRUN id" }, /^image: must be a reference/],
  ["an image with an argument", { image: "$BASE" }, /^image: must be a reference/],
])("refuses %s", (_, change, message) => {
  const { error } = TemplateCreate.safeParse({ name, ...change });
  const issues = error?.issues.map((issue) => `${issue.path.join(".")}: ${issue.message}`) ?? [];
  expect(issues.join("\n")).toMatch(message);
});

test.each([
  [
    "COPY from the context",
    "FROM debian:12\nCOPY app /srv/",
    /dockerfile: COPY needs files.* Write or fetch/,
  ],
  ["COPY in the JSON form", 'FROM debian:12\nCOPY ["a", "b"]', /dockerfile: COPY needs files/],
  ["COPY with an owner", "FROM debian:12\ncopy --chown=1:1 a b", /dockerfile: COPY needs files/],
  ["ADD from the context", "FROM debian:12\nADD a.tar /", /dockerfile: ADD needs files/],
  ["ADD of a URL and a file", "FROM debian:12\nADD https://x.test/a b /srv/", /dockerfile: ADD needs files/],
  [
    "a bind mount of the context",
    "FROM debian:12\nRUN --mount=type=bind,source=a,target=/a id",
    /not in the context/,
  ],
  ["junk", "hello", /dockerfile: .*"hello" is not an instruction/],
  ["no FROM", "ARG A=1", /dockerfile: .*it has no FROM/],
  ["RUN before FROM", "RUN id\nFROM debian:12", /must begin with FROM/],
  ["an ARG without a name", "ARG =1\nFROM debian:12", /ARG "=1" is not understood/],
  ["FROM an undefined ARG", "FROM ${BASE}", /"" is not a valid name of an image/],
  ["FROM a path of the host", "FROM oci:/etc", /"oci:\/etc" is not a valid name of an image/],
  ["FROM another platform", "FROM --platform=linux/arm64 debian:12", /not supported/],
])("refuses a Dockerfile with %s, and queues nothing", async (_, dockerfile, message) => {
  expect(await refusal(create({ dockerfile }))).toMatch(message);
  const rows = await db.selectFrom("templates").select("id").where("name", "=", name).execute();
  expect(rows).toEqual([]);
});

test.each([
  ["ADD of a URL", "FROM debian:12\nADD https://x.test/a.tgz /srv/", "debian:12"],
  ["COPY from a stage", "FROM node:22-slim AS one\nFROM debian:12\nCOPY --from=one /a /b", "debian:12"],
  ["COPY from an image", "FROM debian:12\nCOPY --chown=1:1 --from=node:22-slim /a /b", "debian:12"],
  ["a stage on a stage", "ARG V=12\nFROM debian:${V} AS one\nFROM one AS two\nFROM 1", "debian:12"],
])("accepts a Dockerfile with %s", async (_, dockerfile, base) => {
  const made = await create({ dockerfile });
  expect(made.base_template).toBe(base);
  await removeTemplate(host.app, actor, made.id);
});

test("refuses a restricted build of a Dockerfile or an image", async () => {
  expect(await refusal(create({ network: "restricted" }))).toBe(
    'invalid_request network: a build of dockerfile is open, as builds of apps are; send "open", or leave the field out.',
  );
  const image = { dockerfile: undefined, image: "debian:12", network: "restricted" };
  expect(await refusal(create(image))).toContain("a build of image is open");
});

test("refuses a plan without custom templates, and hides a template from another workspace", async () => {
  const free = await personWithTier(db, "free");
  expect(await refusal(createTemplate(host.app, free.actor, input()))).toMatch(/^plan_limit/);
  const { id } = await createAndBuild();
  expect(await refusal(getTemplate(host.app, stranger.actor, id))).toMatch(/^template_not_found/);
  expect(await refusal(readLogs(host.app, stranger.actor, id, { after: 0, limit: 1 }))).toMatch(
    /^template_not_found/,
  );
  for (const template of [id, name])
    expect(await refusal(createSandbox(host.app, stranger.actor, createInput({ template })))).toMatch(
      /^invalid_request/,
    );
  const theirs = { name, base_template: id, recipe: ["true"] };
  expect(await refusal(createTemplate(host.app, stranger.actor, TemplateCreate.parse(theirs)))).toMatch(
    /^invalid_request base_template/,
  );
});

test("reports the failed instruction, and leaves no image", async () => {
  const { id, status, error_message } = await createAndBuild({ dockerfile: "FROM debian:12\nRUN false" });
  expect(status).toBe("failed");
  expect(error_message).toMatch(/^"RUN false" exited with 1\. Last output:\nSTEP/);
  expect(await images()).not.toContain(id);
});

test.each([
  ["is missing in the image", "nobody-here", /^USER nobody-here: the image has no such user\. Create it/],
  ["is no name", '"a b"', /is not supported: use a name or a number/],
])("fails a build whose USER %s", async (_, user, message) => {
  const { id, error_message } = await createAndBuild({ dockerfile: `FROM debian:12\nUSER ${user}` });
  expect(error_message).toMatch(message);
  await expect
    .poll(async () => {
      await sweepImages(host.app);
      return images();
    })
    .not.toContain(id);
  expect(await buildMachines()).toEqual([]);
});

test("warns about an image without a shell, which runs programs by `args`", async () => {
  const spied = vi
    .spyOn(FakeGuest.prototype, "spawn")
    .mockRejectedValue(new RuntimeError("exec_failed", "/bin/sh was not found"));
  onTestFinished(() => spied.mockRestore());
  const { id, status } = await createAndBuild({ dockerfile: "FROM scratch" });
  expect(status).toBe("ready");
  expect(await logOf(id)).toContain("Warning: the image has no working /bin/sh.");
});

test("refuses code cells, and names the template to use", async () => {
  const box = await sandbox((await createAndBuild()).id);
  expect(await refusal(runCode(host.app, actor, box.id, Code.parse({ code: "1" })))).toMatch(
    /^interpreter_unavailable .*code-interpreter/,
  );
});

test("removes the image when the template and its last sandbox are deleted", async () => {
  const { id } = await createAndBuild();
  const box = await sandbox(id);
  await removeTemplate(host.app, actor, id);
  await sweepImages(host.app);
  expect(await exec(box.id, "echo runs")).toBe("runs\n");
  expect(await images()).toContain(id);
  await terminateSandbox(host.app, actor, box.id);
  await expect
    .poll(async () => {
      await sweepImages(host.app);
      return images();
    })
    .not.toContain(id);
});

test("keeps warm machines of the image, and removes them with the template", async () => {
  const { id } = await createAndBuild();
  const box = await sandbox(id);
  const warm = async () =>
    (
      await db
        .selectFrom("machines")
        .select(["image_id", "desired"])
        .where("owner_kind", "=", "pool")
        .execute()
    ).filter((row) => row.image_id === id && row.desired === "frozen").length;
  await expect.poll(warm).toBe(1);
  expect(await exec((await sandbox(id)).id, "pwd; echo $COLOR")).toMatch(/\/tmp\nred\n$/);
  await removeTemplate(host.app, actor, id);
  await expect.poll(warm).toBe(0);
  expect(await exec(box.id, "echo runs")).toBe("runs\n");
});

test("ends a running build when its template is deleted", async () => {
  const { id } = await create();
  onKillPoint(
    async (point) => void (point === "build.stepped" && (await removeTemplate(host.app, actor, id))),
  );
  onTestFinished(() => onKillPoint(undefined));
  await build();
  expect(await buildMachines()).toEqual([]);
  await sweepImages(host.app);
  expect(await images()).not.toContain(id);
});

test("builds again after a server died with a finished image that was not recorded", async () => {
  const { id } = await create();
  const stop = new AbortController();
  onKillPoint(async (point) => void (point === "build.stepped" && stop.abort()));
  await host.builds.run(stop.signal);
  onKillPoint(undefined);
  expect(await get(id)).toMatchObject({ status: "building" });
  expect(await progressOf(db, id)).toEqual({ fraction: 0, step: "waiting" });
  await host.restart();
  await build();
  expect(await get(id)).toMatchObject({ status: "ready", error_message: null });
});
