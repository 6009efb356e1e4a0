/** Audit entries of requests that change no record, through the real API. */
import { expect, test } from "vitest";
import { accessLogOf } from "#accounts/activity/access-log.ts";
import { clearActorCache } from "#accounts/find-actor.ts";
import { openWorld } from "./world.ts";

// oxlint-disable-next-line typescript/no-explicit-any -- these tests check the shape of responses
type Json = any;

const world = await openWorld();
const { owner, stranger } = world;

async function call(method: string, path: string, body?: unknown, token: string | null = owner.token) {
  return world.call(method, path, body === undefined ? { token } : { token, body });
}

async function activity(query: string, token = owner.token): Promise<Json> {
  await accessLogOf(world.app).flush();
  const { status, json } = await call("GET", `/api/v1/activity?${query}`, undefined, token);
  expect(status, JSON.stringify(json)).toBe(200);
  return json;
}

async function sandbox(): Promise<string> {
  const { status, json } = await call("POST", "/v1/sandboxes", { template: "debian-12" });
  expect(status, JSON.stringify(json)).toBe(201);
  return (json as Json).id as string;
}

test("logs exec, files, terminals and presigned URLs with person, address and target, without contents", async () => {
  const id = await sandbox();
  const path = `/v1/sandboxes/${id}`;
  const canary = "canary-contents";
  await call("POST", `${path}/exec`, { command: `echo ${canary}` });
  await call("POST", `${path}/commands`, { command: `echo ${canary}` });
  await call("POST", `${path}/pty`, { command: `echo ${canary}` });
  await call("POST", `${path}/code`, { code: canary });
  await call("POST", `${path}/files`, {
    path: "/workspace/a",
    content: Buffer.from(canary).toString("base64"),
  });
  await call("GET", `${path}/files?path=/workspace/a`);
  const files = Array.from({ length: 12 }, (_, n) => ({ path: `/workspace/${n}`, content: "" }));
  await call("POST", `${path}/files/batch`, { files });
  await call("POST", `${path}/files/presign-download`, { path: "/workspace/a", expires_in: 60 });
  const { items, total } = await activity(`access=only&target=${id}`);
  expect(items.map(({ action }: Json) => action).toReversed()).toEqual([
    "command.executed",
    "command.started",
    "terminal.started",
    "code.executed",
    "file.written",
    "file.read",
    "file.written",
    "presigned_url.created",
  ]);
  expect(total).toBe(8);
  expect(items[2]).toMatchObject({
    actor: { kind: "api_token", role: "owner" },
    person: { id: owner.userId, email: owner.email },
    target: { kind: "sandbox", id },
    workspace: "personal",
    ip: "127.0.0.1",
    detail: { path: "/workspace/a" },
  });
  expect(items[1].detail).toMatchObject({ files: 12, paths: files.slice(0, 10).map((file) => file.path) });
  expect(JSON.stringify(items)).not.toContain(canary);
  expect(JSON.stringify(items)).not.toContain(Buffer.from(canary).toString("base64"));
  // The default list contains only changes.
  const changes = await activity(`target=${id}`);
  expect(changes.items.map(({ action }: Json) => action)).toEqual(["sandbox.created"]);
  expect((await activity(`access=include&target=${id}`)).total).toBe(9);
});

test("logs each read of decrypted variables", async () => {
  const made = await call("POST", "/api/v1/projects", { name: "audited", env_vars: { A: "canary-value" } });
  const { id } = made.json as Json;
  await call("GET", `/api/v1/projects/${id}/env-vars`);
  // A UUID in upper case is the same UUID.
  await call("GET", `/api/v1/projects/${String(id).toUpperCase()}/env-vars`);
  const { items } = await activity(`action=variables.read&access=only`);
  const read = { target: { kind: "project", id }, workspace: "personal" };
  expect(items).toMatchObject([read, read]);
  expect(JSON.stringify(items)).not.toContain("canary-value");
});

test("shows a stranger's refused access to a sandbox only to the operator", async () => {
  const id = await sandbox();
  const { status } = await call("POST", `/v1/sandboxes/${id}/exec`, { command: "id" }, stranger.token);
  expect(status).toBe(404);
  for (const token of [owner.token, stranger.token]) {
    expect((await activity(`access=only&target=${id}`, token)).items).toEqual([]);
  }
  await world.app.db.updateTable("users").set({ is_operator: true }).where("id", "=", owner.userId).execute();
  clearActorCache(world.app);
  expect(await activity(`workspace=all&access=only&target=${id}`)).toMatchObject({
    items: [{ person: { email: stranger.email }, workspace: null }],
  });
});
