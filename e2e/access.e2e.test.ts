/** Whose sandbox it is, and what a token may do with it. A team of the operator's is the other workspace. */
import { beforeAll, expect, onTestFinished, test } from "vitest";
import type { Reply } from "./support/api.ts";
import { expectRefusal } from "./support/answers.ts";
import { createSandbox, debian, getSandbox, server, sharedSandbox } from "./support/fixtures.ts";

const box = sharedSandbox();
const tokens: Record<"team" | "read" | "write" | "platform" | "revoked", string> = {
  team: "",
  read: "",
  write: "",
  platform: "",
  revoked: "",
};
/** The rate limits' headers differ, and only they, for two refusals of the same call. */
const outcome = ({ status, body }: Reply) => ({ status, body });

/** A call of the platform API that must succeed. */
async function must(method: string, path: string, body?: object): Promise<Reply["body"]> {
  const reply = await server.api(method, path, { body });
  if (reply.status >= 300)
    throw new Error(`${method} ${path}: ${reply.status} ${JSON.stringify(reply.body)}`);
  return reply.body;
}

function mint(input: Record<string, unknown>): Promise<{ id: string; token: string }> {
  return must("POST", "/api/v1/api-tokens", { name: "e2e", expires_in_days: 30, scopes: null, ...input });
}

beforeAll(async () => {
  const team = await must("POST", "/api/v1/teams", { name: "The others" });
  await server.sql("update workspaces set sandbox_tier = 'free' where id = $1", [team.id]);
  tokens.team = (await mint({ workspace: team.id })).token;
  tokens.read = (await mint({ scopes: ["sandboxes:read"] })).token;
  tokens.write = (await mint({ scopes: ["sandboxes:write"] })).token;
  tokens.platform = (await mint({ scopes: ["platform:read", "platform:write"] })).token;
  const revoked = await mint({});
  tokens.revoked = revoked.token;
  await must("DELETE", `/api/v1/api-tokens/${revoked.id}`);
});

/** Every call on one sandbox, with a body it would take. */
const calls = (id: string): [string, string, object?][] => [
  ["GET", `/v1/sandboxes/${id}`],
  ["GET", `/v1/sandboxes/${id}/metrics`],
  ["GET", `/v1/sandboxes/${id}/files?path=/etc/hostname`],
  ["GET", `/v1/sandboxes/${id}/files/stat?path=/etc/hostname`],
  ["POST", `/v1/sandboxes/${id}/exec`, { command: "echo reached > /tmp/reached" }],
  ["POST", `/v1/sandboxes/${id}/exec`, { command: "echo reached > /tmp/reached", stream: true }],
  ["POST", `/v1/sandboxes/${id}/files`, { path: "/tmp/reached", content: "" }],
  ["POST", `/v1/sandboxes/${id}/files/mkdir`, { path: "/tmp/reached" }],
  ["POST", `/v1/sandboxes/${id}/files/move`, { from: "/tmp/a", to: "/tmp/reached" }],
  ["POST", `/v1/sandboxes/${id}/files/batch`, { files: [{ path: "/tmp/reached", content: "" }] }],
  ["DELETE", `/v1/sandboxes/${id}/files?path=/tmp/a`],
  ["POST", `/v1/sandboxes/${id}/timeout`, { timeout_seconds: 10 }],
  ["DELETE", `/v1/sandboxes/${id}`],
];

test("to another workspace a sandbox is exactly as one that does not exist, in every call", async () => {
  const before = await getSandbox(box.id);
  const others = calls(box.id);
  const absent = calls("sbx_aaaaaaaaaaaaaaaaaaaa");
  for (const [index, [method, path, body]] of others.entries()) {
    const foreign = await server.api(method, path, { token: tokens.team, body });
    expectRefusal(foreign, 404, "sandbox_not_found");
    const [, absentPath = ""] = absent[index] ?? [];
    const unknown = await server.api(method, absentPath, { token: tokens.team, body });
    expect(outcome(foreign), `${method} ${path}`).toEqual(outcome(unknown));
  }
  const { body: list } = await server.api("GET", "/v1/sandboxes", { token: tokens.team });
  expect(list.items.map(({ id }: { id: string }) => id)).not.toContain(box.id);
  expect(await getSandbox(box.id)).toEqual(before);
  const { body: reached } = await server.api("GET", `/v1/sandboxes/${box.id}/files/stat?path=/tmp/reached`);
  expect(reached.exists).toBe(false);
});

test("without a token, with one that is none, and with a revoked one every call answers 401", async () => {
  for (const token of [null, "svc_nonsense", `svc_${"a".repeat(40)}`, tokens.revoked]) {
    for (const [method, path, body] of calls(box.id)) {
      const reply = await server.api(method, path, { token, body });
      expectRefusal(reply, 401, "unauthenticated");
    }
  }
  expect(
    (await server.api("GET", "/v1/sandboxes", { token: null })).headers.get("www-authenticate"),
  ).toContain("Bearer");
});

test("a token that may only read gets 403 missing_scope for every change, and what it may read", async () => {
  for (const [method, path, body] of calls(box.id)) {
    const reply = await server.api(method, path, { token: tokens.read, body });
    if (method === "GET") expect([path, reply.status]).toEqual([path, 200]);
    else expectRefusal(reply, 403, "missing_scope");
  }
  expectRefusal(
    await server.api("POST", "/v1/sandboxes", { token: tokens.read, body: debian }),
    403,
    "missing_scope",
  );
  for (const path of ["/v1/sandboxes", "/v1/sandboxes/limits"]) {
    expect((await server.api("GET", path, { token: tokens.read })).status).toBe(200);
    expectRefusal(await server.api("GET", path, { token: tokens.platform }), 403, "missing_scope");
  }
});

test("a token that may write may read as well", async () => {
  const made = await createSandbox({}, { token: tokens.write });
  expect((await server.api("GET", `/v1/sandboxes/${made.id}`, { token: tokens.write })).status).toBe(200);
});

test("a sandbox belongs to the workspace its token is bound to", async () => {
  const made = await server.api("POST", "/v1/sandboxes", { token: tokens.team, body: debian });
  expect(made.status, JSON.stringify(made.body)).toBe(201);
  onTestFinished(async () => {
    await server.api("DELETE", `/v1/sandboxes/${made.body.id}`, { token: tokens.team });
  });
  const { body: list } = await server.api("GET", "/v1/sandboxes?status=running", { token: tokens.team });
  expect(list.items.map(({ id }: { id: string }) => id)).toEqual([made.body.id]);
  // The operator is a member of that team: a token that is bound to nothing reaches both.
  expect((await server.api("GET", `/v1/sandboxes/${made.body.id}`)).status).toBe(200);
});

test("the free tier has one size and half an hour, and says what would allow more", async () => {
  const create = (input: object) =>
    server.api("POST", "/v1/sandboxes", { token: tokens.team, body: { ...debian, ...input } });
  const { body: limits } = await server.api("GET", "/v1/sandboxes/limits", { token: tokens.team });
  expect(limits).toMatchObject({
    tier: "free",
    sizes: [{ name: "small", cpu: 1, memory_mb: 1024 }],
    max_timeout_seconds: 1800,
    snapshot_cap: 3,
    can_expose_ports: false,
    can_build_templates: false,
    paused_retention_days: 7,
  });
  for (const size of ["medium", "large"]) {
    const refused = await create({ size });
    expectRefusal(refused, 403, "plan_limit");
    expect(refused.body).toMatchObject({ limit: "size", allowed: ["small"], tier_needed: "payg" });
  }
  const domains = await create({ allow_domains: ["example.com"] });
  expectRefusal(domains, 403, "plan_limit");
  expectRefusal(await create({ timeout_seconds: 1801 }), 400, "timeout_too_long");
  const made = await create({ timeout_seconds: 1800 });
  expect(made.status, JSON.stringify(made.body)).toBe(201);
  const path = `/v1/sandboxes/${made.body.id}`;
  onTestFinished(async () => {
    await server.api("DELETE", path, { token: tokens.team });
  });
  const longer = { token: tokens.team, body: { timeout_seconds: 1801 } };
  expectRefusal(await server.api("POST", `${path}/timeout`, longer), 400, "timeout_too_long");
});

test("every answer says what is left of the rate limit", async () => {
  const first = await server.api("GET", "/v1/sandboxes/limits", { token: tokens.team });
  expect(first.headers.get("x-ratelimit-limit")).toBe("240");
  expect(Number(first.headers.get("x-ratelimit-remaining"))).toBeLessThan(240);
  expect(first.headers.get("x-ratelimit-reset")).toMatch(/^\d+$/);
});
