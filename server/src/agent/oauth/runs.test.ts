/** A run whose end user must sign in, and the next run, which has the connection. */
import { expect, test } from "vitest";
import { onKillPoint } from "#lib/kill-points.ts";
import { offerSignIn } from "./flow/sign-in-link.ts";
import { agentHost, type Json, modelConfig } from "../testing/agent-app.ts";
import { readFrames } from "../testing/events.ts";
import { freePort } from "../testing/free-port.ts";
import { startModelServer } from "../testing/model-server.ts";
import { startSignInServer, TestBrowser } from "../testing/sign-in-server.ts";

const host = await agentHost({ config: { port: String(await freePort()) } });
const owner = await host.person();
const model = await startModelServer();
const shop = await startSignInServer({
  redirectUri: `${host.baseUrl}/connect/callback`,
  isRegistering: true,
});

test("emits the sign-in link to the end user, and calls the tool with that user's token in the next run", async () => {
  const made = await owner.post("/v1/agent-toolsets", {
    name: "shop",
    kind: "http",
    url: shop.resource,
    auth_type: "oauth",
    oauth_per_end_user: true,
    http_tools: [
      { name: "me", description: "Who.", method: "GET", path: "/me", parameters: { type: "object" } },
    ],
  });
  expect(made.status, JSON.stringify(made.json)).toBe(201);
  const config = { ...(await modelConfig(owner, model.url)), toolsets: [{ toolset_id: made.json.id }] };
  expect((await owner.post("/v1/agents", { name: "clerk", config })).status).toBe(201);
  const ask = async (who: string) => {
    model.script([{ calls: [{ name: "shop__me", arguments: "{}" }] }, { text: ["Well."] }]);
    const { json } = await owner.post("/v1/agents/clerk/invoke", { input: "Who am I?", end_user_id: who });
    expect(json).toMatchObject({ status: "completed", output: "Well." });
    const url = `${host.baseUrl}/v1/agents/runs/${json.run_id}/stream`;
    const { frames, text } = await readFrames(url, { token: owner.token });
    const told: Json = model.asked[1].messages.at(-1).content;
    return { told, text, json, link: frames.find(({ event }) => event === "connection.auth_required")?.data };
  };
  const before = await ask("ada");
  expect(before.link).toMatchObject({
    toolset_id: made.json.id,
    end_user_id: "ada",
    authorize_url: expect.stringMatching(/\/connect\/[\w-]{32}$/),
    expires_in: expect.any(Number),
  });
  // The waiting invoke returns the same link.
  const { expires_in: _, ...link } = before.link;
  const signIn = {
    toolset_id: link.toolset_id,
    end_user_id: "ada",
    authorize_url: link.authorize_url,
    expires_at: expect.stringMatching(/Z$/),
  };
  expect(before.json.sign_in).toEqual([signIn]);
  expect((await owner.get(`/v1/agents/runs/${before.json.run_id}`)).json.sign_in).toEqual([signIn]);
  // The link is for the person, so the model does not get the link.
  expect(before.told).not.toContain("/connect/");
  expect((await new TestBrowser().signIn(before.link.authorize_url, "ada-at-the-shop")).status).toBe(200);
  const after = await ask("ada");
  expect(after.told).toContain('{"account":"ada-at-the-shop"}');
  expect([after.link, after.json.sign_in]).toEqual([undefined, []]);
  expect((await ask("bob")).link).toMatchObject({ end_user_id: "bob" });
  expect(shop.calls.map(({ account }) => account)).toEqual(["ada-at-the-shop"]);

  // An end user is erased just before the tool creates their link. The end user is not stored again.
  const erased: number[] = [];
  onKillPoint(async (point) => {
    if (point !== "agent.call.began") return;
    onKillPoint(undefined);
    erased.push((await owner.call("DELETE", "/v1/agents/clerk/end-users/eve")).status);
  });
  model.script([{ calls: [{ name: "shop__me", arguments: "{}" }] }, { text: ["Well."] }]);
  await owner.post("/v1/agents/clerk/invoke", { input: "Who am I?", end_user_id: "eve" });
  expect(erased).toEqual([200]);
  await expect(
    offerSignIn(host.app, { id: made.json.id }, "eve", async () => {
      throw new Error("The run is over.");
    }),
  ).rejects.toThrow("over");
  const links = await host.app.db.selectFrom("agent_connect_links").select("end_user_id").execute();
  expect(links.map(({ end_user_id }) => end_user_id)).not.toContain("eve");
});
