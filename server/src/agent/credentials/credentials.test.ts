import { sql } from "kysely";
import { expect, test } from "vitest";
import { agentHost, modelConfig } from "../testing/agent-app.ts";
import { startModelServer } from "../testing/model-server.ts";

const host = await agentHost({ config: { allowPrivateHosts: "127.0.0.1" } });
const owner = await host.person();
const canary = "sk-canary-0123456789-WXYZ";
const input = {
  provider: "openai_compatible",
  name: "local",
  api_key: canary,
  base_url: "http://127.0.0.1:9/v1/",
};

test("stores a key encrypted and returns only a hint of the key", async () => {
  const { status, json } = await owner.post("/v1/model-credentials", input);
  expect([status, json]).toMatchObject([
    201,
    {
      id: expect.stringMatching(/^mcr_/),
      provider: "openai_compatible",
      name: "local",
      hint: "…WXYZ",
      base_url: "http://127.0.0.1:9/v1",
    },
  ]);
  const listed = (await owner.get("/v1/model-credentials")).json;
  expect(listed.items).toEqual([json]);
  for (const table of ["model_credentials", "activity", "idempotency_keys"]) {
    const { rows } = await sql`select t::text as row from ${sql.table(table)} as t`.execute(host.app.db);
    expect(JSON.stringify(rows)).not.toContain(canary);
    expect(JSON.stringify(rows)).not.toContain(Buffer.from(canary).toString("hex"));
  }
});

test("returns no character of a short key as a hint", async () => {
  const { json } = await owner.post("/v1/model-credentials", { ...input, api_key: "ollama" });
  expect(json.hint).toBe("…");
});

test.each([
  ["http://10.0.0.1/v1", "private"],
  ["http://[::1]:8000", "private"],
  ["http://169.254.169.254/latest", "private"],
  ["ftp://example.com", "URL"],
  ["http://user:secret@127.0.0.1/v1", "URL"],
  ["http://127.0.0.1/v1?key=1", "URL"],
  [null, "required"],
])("rejects a base URL that is invalid or forbidden: %s", async (base_url, words) => {
  const { status, json } = await owner.post("/v1/model-credentials", { ...input, base_url });
  expect([status, json]).toMatchObject([400, { pointer: "/base_url" }]);
  expect(json.detail).toContain(words);
});

test("refuses to add or delete keys for a restricted token", async () => {
  const token = await owner.tokenWith(["agents:write", "agents:read"]);
  const as = { authorization: `Bearer ${token}` };
  const { items } = (await owner.call("GET", "/v1/model-credentials", undefined, as)).json;
  for (const reply of [
    await owner.call("POST", "/v1/model-credentials", input, as),
    await owner.call("DELETE", `/v1/model-credentials/${items[0].id}`, undefined, as),
  ])
    expect([reply.status, reply.json]).toMatchObject([403, { code: "full_access_required" }]);
  expect((await owner.call("DELETE", `/v1/model-credentials/${items[0].id}`)).status).toBe(204);
  expect((await owner.call("DELETE", `/v1/model-credentials/${items[0].id}`)).json).toMatchObject({
    code: "model_credential_not_found",
  });
});

test("uses a rotated key in open sessions and old versions, and keeps the base URL", async () => {
  const model = await startModelServer();
  const config = await modelConfig(owner, model.url);
  const path = `/v1/model-credentials/${config.model.credential_id}`;
  await owner.post("/v1/agents", { name: "rotated", config });
  model.script([{ text: ["Yes."] }]);
  const first = (await owner.post("/v1/agents/rotated/invoke", { input: "Hi" })).json;
  const fresh = "sk-fresh-0123456789-ABCD";
  const { status, json } = await owner.call("PATCH", path, { api_key: fresh, name: "new" });
  expect([status, json]).toMatchObject([200, { hint: "…ABCD", name: "new", base_url: expect.any(String) }]);
  const body = { input: "Again", session_id: first.session_id };
  expect((await owner.post("/v1/agents/rotated/invoke", body)).json.status).toBe("completed");
  expect(model.authorizations.at(-1)).toBe(`Bearer ${fresh}`);
  for (const bad of [{}, { base_url: "https://example.com" }, { api_key: "a b" }, { provider: "openai" }])
    expect((await owner.call("PATCH", path, bad)).status, JSON.stringify(bad)).toBe(400);
  const stranger = await host.person();
  expect((await stranger.call("PATCH", path, { api_key: fresh })).json.code).toBe(
    "model_credential_not_found",
  );
  const as = { authorization: `Bearer ${await owner.tokenWith(["agents:write"])}` };
  expect((await owner.call("PATCH", path, { name: "x" }, as)).json.code).toBe("full_access_required");
  const { rows } = await sql`select t::text as row from activity as t`.execute(host.app.db);
  expect(JSON.stringify(rows)).not.toContain(fresh);
});
