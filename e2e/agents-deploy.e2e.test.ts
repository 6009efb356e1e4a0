/**
 * An agent deploys a pushed commit. A real build and a real machine run the deployment, and the model receives the
 * app's own log.
 */
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, inject, onTestFinished, test } from "vitest";
import { startModelServer } from "@kontor/server/agent/testing/model-server.ts";
import {
  dockerfile,
  makeProject,
  deleteProject,
  waitForDeployment,
  push,
  saying,
  visit,
} from "./support/projects.ts";
import { type Server, startServer } from "./support/server.ts";

// oxlint-disable-next-line typescript/no-explicit-any -- an answer's shape is what this test is about
type Json = any;

let server: Server;
let made = 0;
const model = await startModelServer();

beforeAll(async () => {
  server = await startServer(
    {
      KONTOR_POOL_SIZE: "0",
      KONTOR_RATE_LIMITS: "off",
      KONTOR_UPLINK: inject("internet"),
      KONTOR_ALLOW_PRIVATE_HOSTS: "127.0.0.0/8",
    },
    ["node-22"],
  );
});
afterAll(() => server.destroy());

/** Starts a fake model that deploys, polls until the deployment ends, reads the log and returns its lines. */
function deployer(projectId: string) {
  const asks = (name: string, values: object, until?: Promise<void>) => ({
    calls: [{ name: `kontor__${name}`, arguments: JSON.stringify(values) }],
    ...(until ? { until } : {}),
  });
  return ({ messages }: Json) => {
    const last = messages.at(-1);
    if (last.role !== "tool") return asks("deploy", { project_id: projectId });
    const said = JSON.parse(last.content);
    if (said.lines?.length > 0) return { text: said.lines.map(({ text }: Json) => text as string) };
    if (said.lines) return asks("get_app_logs", { project_id: projectId }, sleep(500));
    if (said.status === "failed") return { text: [said.error] };
    if (["queued", "building", "deploying"].includes(said.status))
      return asks("get_deployment", { deployment_id: said.id }, sleep(500));
    return asks("get_app_logs", { project_id: projectId });
  };
}

test("an agent deploys a pushed commit and reads the app's log", { timeout: 300_000 }, async () => {
  const project = await makeProject(server, { auto_deploy: false });
  onTestFinished(() => deleteProject(server, project));
  await push(server, project, {
    Dockerfile: dockerfile(),
    "server.js": `console.log("the kettle is on");${saying("tea")}`,
  });
  const call = async (path: string, body: object): Promise<Json> =>
    (await server.api("POST", path, { body: body as Record<string, unknown> })).body;
  const credential = await call("/v1/model-credentials", {
    provider: "openai_compatible",
    name: "local",
    api_key: "a-key-of-the-model",
    base_url: model.url,
  });
  const { name, worker_id } = await call("/v1/agents", {
    name: `deployer-${(made += 1)}`,
    config: {
      model: { provider: "openai_compatible", id: "scripted", credential_id: credential.id },
      platform: { scopes: ["platform:write"], policy: "allow" },
      limits: { max_steps: 400 },
    },
  });
  model.script(deployer(project.id));
  const run = await call(`/v1/agents/${name}/invoke`, { input: "Deploy it.", wait_s: 200 });
  expect(run, JSON.stringify(run)).toMatchObject({ status: "completed" });
  expect(run.output).toContain("the kettle is on");
  expect(await waitForDeployment(server, project)).toMatchObject({
    status: "live",
    error: null,
    trigger: { kind: "agent" },
  });
  expect(await visit(server, project)).toEqual({ status: 200, text: "tea" });
  const { body } = await server.api("GET", `/api/v1/activity?actor=${worker_id}`);
  expect(body.items.map(({ action }: Json) => action)).toContain("deployment.created");
});
