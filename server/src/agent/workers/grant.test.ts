/**
 * A token cannot grant an agent a scope that the token lacks, neither when a version is published nor when a run
 * starts.
 */
import { expect, test } from "vitest";
import { testHost } from "#sandbox/testing/sandbox-app.ts";
import { agentHost, modelConfig } from "../testing/agent-app.ts";

const host = await agentHost({ isIdle: true, machines: (db) => testHost(db) });
const owner = await host.person();
const narrow = await owner.tokenWith(["agents:write", "sandboxes:read"]);
const wide = await owner.tokenWith(["agents:write", "sandboxes:write"]);
let made = 0;

const send = (method: string, path: string, body: unknown, token: string) =>
  owner.call(method, path, body, { authorization: `Bearer ${token}` });
const volume = async (): Promise<string> =>
  (await owner.post("/v1/sandboxes/volumes", { name: `volume-${(made += 1)}`, size_gb: 1 })).json.id;
const newName = () => `agent-${(made += 1)}`;

const refusal = (field: string, pointer = `/config/${field.replaceAll(".", "/")}`) => ({
  status: 403,
  json: {
    code: "missing_scope",
    scope: "sandboxes:write",
    pointer,
    detail: `config.${field} grants the agent sandboxes:write, which this token lacks; use a token that has it, or remove config.${field}.`,
  },
});

test.each([
  ["vm.volume", async () => ({ volume: await volume() })],
  ["vm.network", async () => ({ network: "open" })],
  ["vm", async () => ({})],
] as const)("refuses config.%s to a token without sandboxes:write", async (field, vm) => {
  const config = { ...(await modelConfig(owner)), vm: { enabled: true, ...(await vm()) } };
  const plain = { config: await modelConfig(owner) };
  const name = newName();
  expect((await send("POST", "/v1/agents", { name, ...plain }, narrow)).status).toBe(201);
  const path = `/v1/agents/${name}`;

  expect(await send("POST", "/v1/agents", { name: newName(), config }, narrow)).toMatchObject(refusal(field));
  expect(await send("POST", `${path}/versions`, { config }, narrow)).toMatchObject(refusal(field));
  expect((await send("POST", `${path}/versions`, { config }, wide)).status).toBe(201);
  const alias = await send("PUT", `${path}/aliases/prod`, { version: 2 }, narrow);
  expect(alias).toMatchObject(refusal(field, "/version"));
  expect((await send("PUT", `${path}/aliases/prod`, { version: 2 }, wide)).status).toBe(200);
});

test("refuses schedules and webhooks for an agent with a machine to a token without sandboxes:write", async () => {
  const config = { ...(await modelConfig(owner)), vm: { enabled: true } };
  const name = newName();
  expect((await send("POST", "/v1/agents", { name, config }, wide)).status).toBe(201);
  for (const [kind, body] of [
    ["schedules", { schedule: "daily", message: "Go" }],
    ["webhooks", { name: "hook" }],
  ] as const) {
    const path = `/v1/agents/${name}/${kind}`;
    expect(await send("POST", path, body, narrow)).toMatchObject(refusal("vm", ""));
    const { status, json } = await send("POST", path, body, wide);
    expect(status).toBe(201);
    expect(await send("PATCH", `${path}/${json.id}`, { name: "new" }, narrow)).toMatchObject(
      refusal("vm", ""),
    );
    expect((await send("PATCH", `${path}/${json.id}`, { enabled: false }, narrow)).status).toBe(200);
  }
});

test("requires no scope for a machine that the config disables", async () => {
  const config = { ...(await modelConfig(owner)), vm: { enabled: false } };
  expect((await send("POST", "/v1/agents", { name: newName(), config }, narrow)).status).toBe(201);
});
