import { sql } from "kysely";
import { expect, test } from "vitest";
import { agentHost, type Json } from "#agent/testing/agent-app.ts";

const host = await agentHost();
const owner = await host.person();
const canary = "client-secret-0123456789";
const client = { oauth_client_id: "client-1", oauth_client_secret: canary };
let made = 0;

const body = (change: object) => ({
  name: `signed${(made += 1)}`,
  kind: "http",
  url: "http://127.0.0.1:9/api",
  http_tools: [],
  ...change,
});
const create = (change: object) => owner.post("/v1/agent-toolsets", body(change));
const patch = async (set: Json, change: object) =>
  (await owner.call("PATCH", `/v1/agent-toolsets/${set.id}`, change)).json;

test("derives the kind of authentication from the given fields", async () => {
  expect((await create({})).json).toMatchObject({
    auth_type: "none",
    status: "ready",
    last_refreshed_at: null,
  });
  const { json: set } = await create({ auth_secret: "a-secret-0123456789" });
  expect(set).toMatchObject({ auth_type: "header" });
  expect(await patch(set, { auth_secret: "" })).toMatchObject({ auth_type: "none", secret_hint: null });
});

test("encrypts an OAuth client's secret, and drops the secret when the origin changes", async () => {
  const scopes = { oauth_scopes: ["read", "write"], oauth_per_end_user: true };
  const { json: set } = await create({ auth_type: "oauth", ...client, ...scopes });
  expect(set).toMatchObject({
    auth_type: "oauth",
    oauth_client_id: "client-1",
    oauth_scopes: "read write",
    oauth_per_end_user: true,
  });
  const row = async () => {
    const { rows } = await sql<Json>`select * from agent_toolsets where id = ${set.id}`.execute(host.app.db);
    return rows[0];
  };
  expect((await row()).oauth_client_secret_sealed).not.toBeNull();
  expect(JSON.stringify([set, await row()])).not.toContain(canary);
  const moved = await patch({ id: set.id }, { url: "http://127.0.0.1:8/", oauth_scopes: null });
  expect(moved).toMatchObject({ auth_type: "oauth", oauth_client_id: null, oauth_scopes: null });
  expect((await row()).oauth_client_secret_sealed).toBeNull();
  expect(await patch(set, { ...client, url: "http://127.0.0.1:9/" })).toMatchObject({
    oauth_client_id: "client-1",
  });
  expect((await row()).oauth_client_secret_sealed).not.toBeNull();
  expect(await patch(set, { oauth_client_id: null })).toMatchObject({ oauth_client_id: null });
  expect((await row()).oauth_client_secret_sealed).toBeNull();
});

test.each([
  [{ auth_type: "oauth", auth_secret: "a-secret-0123456789" }, "/auth_secret"],
  [{ auth_type: "oauth", auth_header_name: "X-Key" }, "/auth_header_name"],
  [{ auth_type: "oauth", oauth_client_secret: canary }, "/oauth_client_id"],
  [{ ...client }, "/oauth_client_id"],
  [{ oauth_scopes: "read" }, "/oauth_scopes"],
  [{ auth_type: "oauth", oauth_scopes: 'a "b"' }, "/oauth_scopes"],
  [{ oauth_per_end_user: true }, "/oauth_per_end_user"],
  [{ auth_type: "header" }, "/auth_type"],
])("rejects sign-in fields that contradict each other: %j", async (change, pointer) => {
  const { status, json } = await create(change);
  expect([status, json]).toMatchObject([400, { pointer }]);
});
