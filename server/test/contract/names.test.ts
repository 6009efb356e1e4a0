/** Names resolve in the home workspace of the request: the workspace of a bound token, else the personal one. */
import { beforeAll, expect, test } from "vitest";
import { clearActorCache } from "#accounts/find-actor.ts";
import { makeTeam, makeToken } from "../factories.ts";
import { openWorld } from "./world.ts";

const world = await openWorld();
/** A token bound to a stranger's team, of which the owner is a member. */
let team = "";

async function create(path: string, token: string, body: object): Promise<Record<string, string>> {
  const { status, json, text } = await world.call("POST", path, { token, body });
  if (status !== 201) throw new Error(`${path}: ${text}`);
  return json as Record<string, string>;
}

beforeAll(async () => {
  const { db } = world.app;
  const { id } = await makeTeam(
    db,
    { [world.stranger.userId]: "owner", [world.owner.userId]: "member" },
    { sandbox_tier: "enterprise" },
  );
  clearActorCache(world.app);
  team = (await makeToken(db, world.stranger.userId, { workspaceId: id })).plaintext;
});

const codeOf = ({ status, json }: { status: number; json: unknown }) =>
  `${status} ${(json as { code?: string }).code}`;

test("accepts the id of a team's agent, and does not accept its name", async () => {
  const credential = await create("/v1/model-credentials", team, {
    provider: "openai_compatible",
    name: "local",
    api_key: "none",
    base_url: "http://127.0.0.1:9/v1",
  });
  const model = { provider: "openai_compatible", id: "m", credential_id: credential["id"] };
  const { id } = await create("/v1/agents", team, { name: "helper", config: { model } });
  const { token } = world.owner;
  const invoke = { token, body: { input: "secret", wait_s: 0 } };
  expect(codeOf(await world.call("POST", "/v1/agents/helper/invoke", invoke))).toBe("404 agent_not_found");
  expect(codeOf(await world.call("GET", "/v1/agents/helper", { token }))).toBe("404 agent_not_found");
  const paused = { token, body: { paused: true } };
  expect(codeOf(await world.call("PATCH", "/v1/agents/helper", paused))).toBe("404 agent_not_found");
  expect((await world.call("GET", `/v1/agents/${id}`, { token })).status).toBe(200);
  expect((await world.call("GET", "/v1/agents/helper", { token: team })).status).toBe(200);
});

test("accepts the id of a team's volume, and does not accept its name", async () => {
  const { id } = await create("/v1/sandboxes/volumes", team, { name: "shared" });
  const { token } = world.owner;
  expect(codeOf(await world.call("DELETE", "/v1/sandboxes/volumes/shared", { token }))).toBe(
    "404 volume_not_found",
  );
  expect((await world.call("DELETE", `/v1/sandboxes/volumes/${id}`, { token })).status).toBe(204);
});

test("accepts the id of a team's snapshot, and does not accept its name", async () => {
  const sandbox = await create("/v1/sandboxes", team, { template: "debian-12" });
  const body = { name: "base" };
  const { id } = await create(`/v1/sandboxes/${sandbox["id"]}/snapshots`, team, body);
  const { token } = world.owner;
  const named = await world.call("POST", "/v1/sandboxes", { token, body: { snapshot: "base" } });
  expect(codeOf(named)).toBe("404 snapshot_not_found");
  const byId = await world.call("POST", "/v1/sandboxes", { token, body: { snapshot: id } });
  expect(byId.status, byId.text).toBe(201);
});
