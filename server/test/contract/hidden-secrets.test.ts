/**
 * Tokens made with `secrets: "hidden"`, for every operation of the three documents. No response contains a secret that
 * was planted before the call, or a secret that the call creates.
 */
import { describe, expect, test } from "vitest";
import { makeToken } from "../factories.ts";
import { canary, expectNoSecret, plantCanary, send } from "./calls.ts";
import { cases } from "./cases/all.ts";
import { openWorld } from "./world.ts";

const world = await openWorld();
const { owner } = world;
const { db } = world.app;

const hidden = await hiddenToken(owner.userId);

const routes = Object.values(world.routes)
  .flat()
  .filter(({ scope }) => scope !== "public");
const usable = routes.filter(({ scope, needsSecrets }) => scope !== null && needsSecrets !== true);
const refused = routes.filter(({ needsSecrets }) => needsSecrets === true);

async function hiddenToken(userId: string): Promise<string> {
  const { plaintext, row } = await makeToken(db, userId);
  await db.updateTable("api_tokens").set({ secrets: "hidden" }).where("id", "=", row.id).execute();
  return plaintext;
}

describe.each(usable)("$method $path", (route) => {
  test("returns no secret to a token that hides secrets", async () => {
    const call = await cases[route.operationId]!.success(world);
    await plantCanary(world, call);
    expectNoSecret(await send(world, route, call, hidden));
  });
});

describe.each(refused)("$method $path", (route) => {
  test("refuses a token that hides secrets", async () => {
    const call = await cases[route.operationId]!.success(world);
    const { status, json } = await send(world, route, call, hidden);
    expect([status, json]).toMatchObject([403, { code: "secrets_hidden" }]);
  });
});

test("returns hints of variables to a token that hides secrets, and the values to another token", async () => {
  const call = await cases["getProjectVariables"]!.success(world);
  expect(await plantCanary(world, call)).toBe(1);
  const route = routes.find(({ operationId }) => operationId === "getProjectVariables")!;
  expect((await send(world, route, call, hidden)).json).toMatchObject({ CANARY: "…hold" });
  expect((await send(world, route, call, owner.token)).json).toMatchObject({ CANARY: canary });
});

test("returns only hints of an add-on's connection URL and a toolset's headers", async () => {
  const call = await cases["getAddon"]!.success(world);
  const addon = routes.find(({ operationId }) => operationId === "getAddon")!;
  const [masked, open] = [
    await send(world, addon, call, hidden),
    await send(world, addon, call, owner.token),
  ];
  expect((open.json as { connection_url: string }).connection_url).toMatch(/:\/\//);
  expect((masked.json as { connection_url: string }).connection_url).toMatch(/^….{4}$/);
  const named = await cases["updateAgentToolset"]!.success(world);
  expect(await plantCanary(world, named)).toBe(1);
  const { json } = await world.call("GET", "/v1/agent-toolsets", { token: hidden });
  expect((json as { items: unknown[] }).items).toContainEqual(
    expect.objectContaining({
      id: named.params!["toolset_id"],
      http_tools: [expect.objectContaining({ name: "planted", headers: { "x-key": "…hold" } })],
    }),
  );
});

test("returns a registry's password to no reader of the project", async () => {
  const { params } = await cases["updateProject"]!.success(world);
  const path = `/api/v1/projects/${params?.["project_id"]}`;
  const credential = { registry: "registry.example.com", username: "ada", password: canary };
  const body = { registry_credential: credential };
  const updated = await world.call("PATCH", path, { token: owner.token, body });
  expect(updated.status).toBe(200);
  for (const read of [path, "/api/v1/projects", "/api/v1/activity"]) {
    const reply = await world.call("GET", read, { token: owner.token });
    expect(reply.status).toBe(200);
    expect(updated.text + reply.text).not.toContain(canary);
  }
});

test("logs that a token hides secrets, and refuses to create tokens with this token", async () => {
  const body = { name: "ci", scopes: ["platform:write"], secrets: "hidden" };
  const created = await world.call("POST", "/api/v1/api-tokens", { token: owner.token, body });
  expect([created.status, created.json]).toMatchObject([201, { secrets: "hidden" }]);
  const listed = await world.call("GET", "/api/v1/api-tokens", { token: owner.token });
  expect(listed.json).toContainEqual(expect.objectContaining({ name: "ci", secrets: "hidden" }));
  const refusal = await world.call("POST", "/api/v1/api-tokens", { token: hidden, body: { name: "wider" } });
  expect([refusal.status, refusal.json]).toMatchObject([403, { code: "full_access_required" }]);
});
