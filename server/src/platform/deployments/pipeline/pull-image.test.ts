import { afterEach, expect, test } from "vitest";
import type { Actor } from "#accounts/actor.ts";
import { BuildFailed } from "#builds/app-images.ts";
import { testDatabase } from "../../../../test/harness.ts";
import { updateProject } from "#platform/projects/update.ts";
import { cancelDeployment } from "../request/cancel.ts";
import { deploy } from "../request/deploy.ts";
import { getDeployment } from "../deployments.ts";
import { readBuildLog, readLogs } from "../logs.ts";
import { restart } from "../request/restart.ts";
import { rollback } from "../request/rollback.ts";
import { DeployQuery, toDeployment } from "../schema.ts";
import {
  makeProject,
  personWithPlan,
  testDeployments,
  type TestProject,
} from "../testing/deployments-app.ts";
import { untilAborted } from "../testing/fake-pipeline.ts";

const { db } = await testDatabase();
const host = await testDeployments(db);
const { app, stage } = host;
const image = "registry.example.com/team/app:1";
const digestOf = (digit: string) => `sha256:${digit.repeat(64)}`;

afterEach(() => host.restart());

async function start(input: Record<string, unknown> = {}) {
  const actor = await personWithPlan(db, "team");
  return { actor, project: await makeProject(host, actor, input) };
}

const get = async (actor: Actor, id: string) => toDeployment(app, await getDeployment(app, actor, id));

async function queueImage(actor: Actor, project: TestProject, rebuild = false): Promise<string> {
  const request = { project, environmentId: project.environmentId, trigger: "api", image, rebuild } as const;
  return (await deploy(app, actor, request)).id;
}

async function deployImage(actor: Actor, project: TestProject, rebuild = false) {
  const id = await queueImage(actor, project, rebuild);
  await host.run();
  return get(actor, id);
}

const statusesOf = (deployment: { steps: { name: string; status: string }[] }) =>
  deployment.steps.filter(({ name }) => name !== "scan").map(({ name, status }) => `${name} ${status}`);
const pulled = [
  "pull succeeded",
  "detect skipped",
  "build skipped",
  "release succeeded",
  "health succeeded",
  "route succeeded",
];

test("deploys an image without a repository, and records the image's reference and digest", async () => {
  const { actor, project } = await start();
  const id = await queueImage(actor, project);
  expect(await get(actor, id)).toMatchObject({ image: { reference: image, digest: null }, image_tag: null });
  await host.run();
  const deployment = await get(actor, id);
  expect(deployment).toMatchObject({
    status: "live",
    error: null,
    image: { reference: image, digest: digestOf("1") },
    image_reused: false,
    commit: { sha: null, message: null, author: null, tag: null },
  });
  expect(statusesOf(deployment)).toEqual(pulled);
  expect(stage.serving.get(project.environmentId)).toBe(id);
  expect((await readLogs(app, actor, id))[0]).toMatchObject({ step: "pull" });
  expect((await readBuildLog(app, actor, id)).text).toContain(`${image} is ${digestOf("1")}`);
});

test("resolves a tag at every deployment, and reuses the image while the tag's digest is the same", async () => {
  const { actor, project } = await start();
  host.pipeline.reuses = true;
  const first = await deployImage(actor, project);
  const builds = stage.builds;
  const same = await deployImage(actor, project);
  expect(same).toMatchObject({ image_reused: true, image_tag: first.image_tag });
  expect(stage.builds).toBe(builds);
  expect(statusesOf(same)).toEqual(pulled);

  const again = await deployImage(actor, project, true);
  expect(again).toMatchObject({ image_reused: false });
  expect(stage.builds).toBe(builds + 1);

  host.pipeline.digest = digestOf("2");
  const newer = await deployImage(actor, project);
  expect(newer).toMatchObject({ image: { reference: image, digest: digestOf("2") }, image_reused: false });
  expect(host.pipeline.pulls.map(({ reference }) => reference.version)).toEqual(["1", "1", "1", "1"]);
});

test("rolls back and restarts an image without a request to its registry", async () => {
  const { actor, project } = await start();
  const first = await deployImage(actor, project);
  host.pipeline.digest = digestOf("2");
  await deployImage(actor, project);
  const pulls = host.pipeline.pulls.length;
  const options = { allowRebuild: false, restoreEnv: false };
  const { id } = await rollback(app, host.pipeline, actor, first.id, options);
  await host.run();
  const back = await get(actor, id);
  expect(back).toMatchObject({ status: "live", image: first.image, image_tag: first.image_tag });
  expect(statusesOf(back)).toEqual(["pull skipped", ...pulled.slice(1)]);

  const again = await restart(app, actor, { projectId: project.id, environmentId: project.environmentId });
  await host.run();
  expect(await get(actor, again.id)).toMatchObject({ status: "live", image: first.image });
  expect(host.pipeline.pulls.length).toBe(pulls);
});

test("pulls a deleted image by its digest when a rollback allows that", async () => {
  const { actor, project } = await start();
  const first = await deployImage(actor, project);
  stage.images.delete(first.image_tag!);
  const options = { allowRebuild: false, restoreEnv: false };
  await expect(rollback(app, host.pipeline, actor, first.id, options)).rejects.toMatchObject({
    code: "image_pruned",
  });
  const { id } = await rollback(app, host.pipeline, actor, first.id, { ...options, allowRebuild: true });
  await host.run();
  expect(await get(actor, id)).toMatchObject({ status: "live", image: first.image });
  expect(host.pipeline.pulls.at(-1)?.reference.text).toBe(`registry.example.com/team/app@${digestOf("1")}`);
});

test("uses the project's credential for the pull, and keeps the credential out of the record", async () => {
  const registry_credential = { registry: "Registry.example.com", username: "ci", password: "canary-pull" };
  const { actor, project } = await start({ registry_credential });
  const deployment = await deployImage(actor, project);
  const credential = { ...registry_credential, registry: "registry.example.com" };
  expect(host.pipeline.pulls.at(-1)).toMatchObject({ credential });
  const rows = await Promise.all([
    db.selectFrom("projects").selectAll().where("id", "=", project.id).execute(),
    db.selectFrom("deployments").selectAll().where("id", "=", deployment.id).execute(),
    db.selectFrom("activity").selectAll().execute(),
    readLogs(app, actor, deployment.id),
  ]);
  expect(JSON.stringify(rows)).not.toContain("canary-pull");
  expect(rows[0][0]!.registry_sealed!.includes("canary-pull")).toBe(false);

  await updateProject(app, actor, project.id, { registry_credential: null });
  await deployImage(actor, project);
  expect(host.pipeline.pulls.at(-1)).toMatchObject({ credential: null });
});

test("warns of an image without a port, and refuses an image without a command unless the project sets one", async () => {
  const { actor, project } = await start();
  host.pipeline.port = null;
  const { id } = await deployImage(actor, project);
  expect((await readBuildLog(app, actor, id)).text).toContain("warning: the image names no port (EXPOSE)");

  host.pipeline.argv = [];
  expect(await deployImage(actor, project)).toMatchObject({
    status: "failed",
    error: expect.stringMatching(
      /^The image could not be pulled: .*neither ENTRYPOINT nor CMD: set start_command/,
    ),
  });
  await updateProject(app, actor, project.id, { start_command: "/app --serve", port: 9000 });
  const started = await deployImage(actor, project);
  expect(started).toMatchObject({ status: "live" });
  expect(stage.started.get(started.id)).toMatchObject({
    argv: ["/bin/sh", "-c", "/app --serve"],
    port: 9000,
  });
  const { text } = await readBuildLog(app, actor, started.id);
  expect(text).toContain("start_command is run by /bin/sh");
  expect(text).not.toContain("names no port");
});

test("fails a deployment with the registry's reason, and keeps the previous deployment live", async () => {
  const { actor, project } = await start();
  const first = await deployImage(actor, project);
  host.pipeline.during.pull = async () => {
    throw new BuildFailed(`${image}: registry.example.com has no such image or tag.`, "");
  };
  const failed = await deployImage(actor, project);
  expect(failed).toMatchObject({
    status: "failed",
    error: `The image could not be pulled: ${image}: registry.example.com has no such image or tag.`,
  });
  expect(statusesOf(failed)).toEqual([
    "pull failed",
    ...pulled.slice(1).map((step) => step.replace("succeeded", "skipped")),
  ]);
  expect(stage.serving.get(project.environmentId)).toBe(first.id);
});

test.each(["deploy.built", "deploy.released", "deploy.healthy"])(
  "resumes after a crash of the server at %s, without another pull",
  async (point) => {
    const { actor, project } = await start();
    const id = await queueImage(actor, project);
    const builds = stage.builds;
    expect(await host.dieAt(point)).toBe(true);
    await host.run();
    const deployment = await get(actor, id);
    expect(deployment).toMatchObject({ status: "live", image: { digest: digestOf("1") } });
    expect(statusesOf(deployment)).toEqual(pulled);
    expect(stage.builds).toBe(builds + 1);
  },
);

test("stops the pull when its deployment is cancelled", async () => {
  const { actor, project } = await start();
  const id = await queueImage(actor, project);
  const began = Promise.withResolvers<void>();
  host.pipeline.during.pull = (work) => {
    began.resolve();
    return untilAborted(work);
  };
  const running = host.run();
  await began.promise;
  await cancelDeployment(app, actor, id);
  await running;
  expect(await get(actor, id)).toMatchObject({ status: "cancelled", error: null });
});

test("refuses an invalid reference, and an image together with a commit or tag", () => {
  const problem = (query: Record<string, string>) => DeployQuery.safeParse(query).error?.issues[0]?.message;
  expect(problem({ image: "https://example.com/app" })).toContain("must name an image as docker pull does");
  expect(problem({ image, tag: "v1" })).toContain("cannot be combined with commit or tag");
  expect(problem({ image, commit: "a".repeat(40) })).toContain("cannot be combined with commit or tag");
  expect(DeployQuery.parse({ image: "nginx" }).image).toBe("docker.io/library/nginx:latest");
});
