import { expect, test } from "vitest";
import { agentHost, type Json, modelConfig } from "../testing/agent-app.ts";
import { startModelServer } from "../testing/model-server.ts";
import { startToolServer } from "../testing/tool-server.ts";

const model = await startModelServer();
const shop = await startToolServer();
const host = await agentHost();
const owner = await host.person();
const stranger = await host.person();
const { json: toolset } = await owner.post("/v1/agent-toolsets", {
  name: "shop",
  kind: "http",
  url: shop.url,
  http_tools: [
    { name: "find", description: "", method: "GET", path: "/find", parameters: { type: "object" } },
  ],
});
const config = { ...(await modelConfig(owner, model.url)), toolsets: [{ toolset_id: toolset.id }] };
await owner.post("/v1/agents", { name: "clerk", config });

test("lists a session's messages page by page, with complete tool results", async () => {
  const long = "x".repeat(5_000);
  shop.answer = (_, response) => response.writeHead(200, { "content-type": "text/plain" }).end(`${long}end`);
  model.script([{ calls: [{ name: "shop__find", arguments: "{}" }] }, { text: ["Found."] }]);
  const { json } = await owner.post("/v1/agents/clerk/invoke", { input: "Find it.", end_user_id: "ada" });
  const path = `/v1/agents/clerk/sessions/${json.session_id}/messages`;
  const { items, next_after } = (await owner.get(path)).json;
  expect(items.map(({ kind, role }: Json) => [kind, role])).toEqual([
    ["input", "user"],
    ["answer", "assistant"],
    ["tools", "tool"],
    ["answer", "assistant"],
  ]);
  expect(next_after).toBeNull();
  expect(JSON.stringify(items[2].content)).toContain(`${long}end`);
  const first = (await owner.get(`${path}?limit=3`)).json;
  expect([first.items, first.next_after]).toEqual([items.slice(0, 3), 3]);
  const second = (await owner.get(`${path}?limit=3&after=3`)).json;
  expect([second.items, second.next_after]).toEqual([items.slice(3), null]);

  expect((await owner.get(`${path}?end_user_id=ada`)).status).toBe(200);
  expect((await owner.get(`${path}?end_user_id=bob`)).json.code).toBe("session_not_found");
  expect((await stranger.get(path)).status).toBe(404);
  const invoking = await owner.tokenWith(["agents:invoke"]);
  const refused = await owner.call("GET", path, undefined, { authorization: `Bearer ${invoking}` });
  expect(refused.json.code).toBe("missing_scope");

  await owner.call("DELETE", `/v1/agents/clerk/sessions/${json.session_id}`);
  expect((await owner.get(path)).json).toEqual({ items: [], next_after: null });
});
