/** Ownership of a sandbox, and the scopes of tokens. The other workspace is a team of the operator. */
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
/**
 * Returns a reply without its headers, because two refusals of the same call differ only in the headers of the rate
 * limit.
 */
const outcome = ({ status, body }: Reply) => ({ status, body });

/** Calls the platform API and requires a success. */
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

/** Returns every call on one sandbox, with a valid body. */
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

test("responds to another workspace's sandbox in every call exactly as to a missing sandbox", async () => {
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

test("responds 401 to every call without a token, with an invalid token, and with a revoked token", async () => {
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

test("refuses changes by a read-only token with 403 missing_scope, and allows the token to read", async () => {
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

test("allows a token with the scope to write to read as well", async () => {
  const made = await createSandbox({}, { token: tokens.write });
  expect((await server.api("GET", `/v1/sandboxes/${made.id}`, { token: tokens.write })).status).toBe(200);
});

test("creates a sandbox in the workspace that its token is bound to", async () => {
  const made = await server.api("POST", "/v1/sandboxes", { token: tokens.team, body: debian });
  expect(made.status, JSON.stringify(made.body)).toBe(201);
  onTestFinished(async () => {
    await server.api("DELETE", `/v1/sandboxes/${made.body.id}`, { token: tokens.team });
  });
  const { body: list } = await server.api("GET", "/v1/sandboxes?status=running", { token: tokens.team });
  expect(list.items.map(({ id }: { id: string }) => id)).toEqual([made.body.id]);
  // The operator is a member of that team, so a token that is bound to no workspace reaches both workspaces.
  expect((await server.api("GET", `/v1/sandboxes/${made.body.id}`)).status).toBe(200);
});

test("the free tier allows one size and thirty minutes, and the error names a larger tier", async () => {
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

test("every response contains the remaining rate limit", async () => {
  const first = await server.api("GET", "/v1/sandboxes/limits", { token: tokens.team });
  expect(first.headers.get("x-ratelimit-limit")).toBe("240");
  expect(Number(first.headers.get("x-ratelimit-remaining"))).toBeLessThan(240);
  expect(first.headers.get("x-ratelimit-reset")).toMatch(/^\d+$/);
});
