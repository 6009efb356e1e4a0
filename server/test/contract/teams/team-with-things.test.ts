import { expect, test } from "vitest";
import { openWorld } from "../world.ts";

const world = await openWorld();

async function call(method: string, path: string, token: string, body?: unknown) {
  const reply = await world.call(method, path, { token, body });
  return { ...reply, json: reply.json as Record<string, string> };
}

test("refuses to delete a team with a running sandbox", async () => {
  const { token } = world.owner;
  const team = (await call("POST", "/api/v1/teams", token, { name: "Crew" })).json["id"] ?? "";
  const bound = await call("POST", "/api/v1/api-tokens", token, {
    name: "crew",
    expires_in_days: null,
    scopes: ["sandboxes:write"],
    workspace: team,
  });
  const crew = bound.json["token"] ?? "";
  const made = await call("POST", "/v1/sandboxes", crew, { template: "debian-12" });
  expect(made.status).toBe(201);

  const refused = await call("DELETE", `/api/v1/teams/${team}`, token);
  expect(refused.status).toBe(409);
  expect(refused.json["detail"]).toContain("1 sandboxes");

  expect((await call("DELETE", `/v1/sandboxes/${made.json["id"]}`, crew)).status).toBe(200);
  expect((await call("DELETE", `/api/v1/teams/${team}`, token)).status).toBe(204);
});

test("refuses to delete a team with a project, and deletes the team after its project", async () => {
  const { token } = world.owner;
  const team = (await call("POST", "/api/v1/teams", token, { name: "Shops" })).json["id"] ?? "";
  const made = await call("POST", "/api/v1/projects", token, { name: "of-a-team", workspace: team });
  expect(made.status).toBe(201);
  const refused = await call("DELETE", `/api/v1/teams/${team}`, token);
  expect(refused.status).toBe(409);
  expect(refused.json["detail"]).toContain("1 projects");
  expect((await call("DELETE", `/api/v1/projects/${made.json["id"]}`, token)).status).toBe(204);
  expect((await call("DELETE", `/api/v1/teams/${team}`, token)).status).toBe(204);
});

test("refuses to delete a team with a function", async () => {
  const { token } = world.owner;
  const team = (await call("POST", "/api/v1/teams", token, { name: "Hooks" })).json["id"] ?? "";
  const body = { name: "of-a-team-too", runtime: "python", handler_code: "pass", workspace: team };
  const made = await call("POST", "/api/v1/functions", token, body);
  expect(made.status).toBe(201);
  const refused = await call("DELETE", `/api/v1/teams/${team}`, token);
  expect(refused.status).toBe(409);
  expect(refused.json["detail"]).toContain("1 functions");
  expect((await call("DELETE", `/api/v1/functions/${made.json["id"]}`, token)).status).toBe(204);
  expect((await call("DELETE", `/api/v1/teams/${team}`, token)).status).toBe(204);
});
