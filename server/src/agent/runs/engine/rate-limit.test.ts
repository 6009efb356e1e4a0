import { expect, test } from "vitest";
import { testClock } from "../../../../test/harness.ts";
import { agentHost } from "#agent/testing/agent-app.ts";

const host = await agentHost({ clock: testClock(), config: { rateLimits: "on" }, isIdle: true });

test("limits a token to 120 invokes per minute on every plan, and returns Retry-After", async () => {
  const person = await host.person({ plan: "starter" });
  const ask = () => person.post("/v1/agents/nobody/invoke", { input: "Hi" });
  for (let n = 0; n < 120; n += 1) expect((await ask()).status).toBe(404);
  const refused = await ask();
  expect(refused).toMatchObject({ status: 429, json: { code: "rate_limited" } });
  expect(Number(refused.headers.get("retry-after"))).toBeGreaterThan(0);
  // Other requests have a rate limit of their own.
  expect((await person.get("/v1/agents")).status).toBe(200);
});
