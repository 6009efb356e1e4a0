/**
 * Tokens made with `secrets: "hidden"`, for every operation of the three documents: no response holds a secret that was
 * planted before the call, or one that the call creates.
 */
import { describe, expect, test } from "vitest";
import type { Route } from "#http/define-route.ts";
import { makeToken } from "../factories.ts";
import { cases } from "./cases/all.ts";
import type { Call } from "./cases/case.ts";
import { openWorld, type Reply } from "./world.ts";

const world = await openWorld();
const { owner } = world;
const { db } = world.app;

const hidden = await hiddenToken(owner.userId);
const canary = "canary-that-no-answer-may-hold";
/** Patterns of secrets that the server creates. */
const made = [
  /whsec_[A-Za-z0-9+/=]{8}/,
  /fnk_[A-Za-z0-9]{12}/,
  /svc_[A-Za-z0-9]{12}/,
  /postgres(ql)?:\/\//,
  /rediss?:\/\//,
];

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

function send({ method, path }: Pick<Route, "method" | "path">, call: Call, token: string): Promise<Reply> {
  const { params, query, body, headers } = call;
  const filled = path.replaceAll(/\{(\w+)\}/g, (_, name: string) =>
    encodeURIComponent(params?.[name] ?? "x"),
  );
  return world.call(method, query === undefined ? filled : `${filled}?${query}`, {
    token,
    body,
    ...(headers ? { headers } : {}),
  });
}

/** Plants the canary as a variable or a header of every object in the call. */
async function plant({ params = {} }: Call): Promise<number> {
  const environment = `/api/v1/projects/${params["project_id"]}/environments/${params["env_id"]}`;
  const places: [string, string, object][] = [
    ["project_id", `/api/v1/projects/${params["project_id"]}`, { env_vars: { CANARY: canary } }],
    ["env_id", environment, { env_vars: { CANARY: canary } }],
    ["function_id", `/api/v1/functions/${params["function_id"]}`, { env_vars: { CANARY: canary } }],
    [
      "toolset_id",
      `/v1/agent-toolsets/${params["toolset_id"]}`,
      {
        http_tools: [
          {
            name: "planted",
            description: "",
            method: "GET",
            path: "/",
            parameters: { type: "object", properties: {} },
            headers: { "x-key": canary },
          },
        ],
      },
    ],
  ];
  let planted = 0;
  for (const [name, path, body] of places) {
    if (params[name] === undefined) continue;
    const { status } = await world.call("PATCH", path, { token: owner.token, body });
    if (status === 200) planted += 1;
  }
  return planted;
}

function expectNoSecret({ text }: Reply): void {
  expect(text).not.toContain(canary);
  for (const form of made) expect(text).not.toMatch(form);
}

describe.each(usable)("$method $path", (route) => {
  test("returns no secret to a token that hides secrets", async () => {
    const call = await cases[route.operationId]!.success(world);
    await plant(call);
    expectNoSecret(await send(route, call, hidden));
  });
});

describe.each(refused)("$method $path", (route) => {
  test("refuses a token that hides secrets", async () => {
    const call = await cases[route.operationId]!.success(world);
    const { status, json } = await send(route, call, hidden);
    expect([status, json]).toMatchObject([403, { code: "secrets_hidden" }]);
  });
});

test("returns hints in place of variables, and the values to a token that shows secrets", async () => {
  const call = await cases["getProjectVariables"]!.success(world);
  expect(await plant(call)).toBe(1);
  const route = routes.find(({ operationId }) => operationId === "getProjectVariables")!;
  expect((await send(route, call, hidden)).json).toMatchObject({ CANARY: "…hold" });
  expect((await send(route, call, owner.token)).json).toMatchObject({ CANARY: canary });
});

test("returns hints in place of an add-on's connection URL and a toolset's headers", async () => {
  const call = await cases["getAddon"]!.success(world);
  const addon = routes.find(({ operationId }) => operationId === "getAddon")!;
  const [masked, open] = [await send(addon, call, hidden), await send(addon, call, owner.token)];
  expect((open.json as { connection_url: string }).connection_url).toMatch(/:\/\//);
  expect((masked.json as { connection_url: string }).connection_url).toMatch(/^….{4}$/);
  const named = await cases["updateAgentToolset"]!.success(world);
  expect(await plant(named)).toBe(1);
  const { json } = await world.call("GET", "/v1/agent-toolsets", { token: hidden });
  expect((json as { items: unknown[] }).items).toContainEqual(
    expect.objectContaining({
      id: named.params!["toolset_id"],
      http_tools: [expect.objectContaining({ name: "planted", headers: { "x-key": "…hold" } })],
    }),
  );
});

test("records that a token hides secrets, and refuses to create tokens with it", async () => {
  const body = { name: "ci", scopes: ["platform:write"], secrets: "hidden" };
  const created = await world.call("POST", "/api/v1/api-tokens", { token: owner.token, body });
  expect([created.status, created.json]).toMatchObject([201, { secrets: "hidden" }]);
  const listed = await world.call("GET", "/api/v1/api-tokens", { token: owner.token });
  expect(listed.json).toContainEqual(expect.objectContaining({ name: "ci", secrets: "hidden" }));
  const refusal = await world.call("POST", "/api/v1/api-tokens", { token: hidden, body: { name: "wider" } });
  expect([refusal.status, refusal.json]).toMatchObject([403, { code: "full_access_required" }]);
});
