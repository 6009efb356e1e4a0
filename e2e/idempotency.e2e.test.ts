import { randomUUID } from "node:crypto";
import { afterEach, expect, onTestFinished, test } from "vitest";
import { expectRefusal } from "./support/answers.ts";
import type { Reply } from "./support/api.ts";
import { createSandbox, debian, deleteSandbox, output, server } from "./support/fixtures.ts";

afterEach(() => server.start());

function create(key: string, body: Record<string, unknown>) {
  return server.api("POST", "/v1/sandboxes", {
    body: { ...debian, ...body },
    headers: { "idempotency-key": key },
  });
}

test("a repeated key and body return the first sandbox again, without its secret", async () => {
  const key = randomUUID();
  const mark = { metadata: { key }, preview_auth: true };
  const first = await create(key, mark);
  expect(first.status).toBe(201);
  onTestFinished(() => deleteSandbox(first.body.id));
  expect(first.body.preview_auth_token).toEqual(expect.any(String));
  expect(first.headers.get("idempotent-replayed")).toBeNull();
  const again = await create(key, mark);
  expect(again.status).toBe(201);
  expect(again.headers.get("idempotent-replayed")).toBe("true");
  expect(again.body).toEqual({ ...first.body, preview_auth_token: null });
  const made = await server.api("GET", `/v1/sandboxes?metadata[key]=${key}`);
  expect(made.body.items).toHaveLength(1);
});

test("a repeated key with another body is refused as a conflict", async () => {
  const key = randomUUID();
  const first = await create(key, { metadata: { n: "1" } });
  onTestFinished(() => deleteSandbox(first.body.id));
  expectRefusal(await create(key, { metadata: { n: "2" } }), 409, "idempotency_conflict");
});

test("two concurrent creates with one key make only one sandbox", async () => {
  const key = randomUUID();
  const both = await Promise.all([create(key, { metadata: { key } }), create(key, { metadata: { key } })]);
  const made = await server.api("GET", `/v1/sandboxes?metadata[key]=${key}`);
  expect(made.body.items).toHaveLength(1);
  onTestFinished(() => deleteSandbox(made.body.items[0].id));
  for (const reply of both) {
    if (reply.status === 201) expect(reply.body.id).toBe(made.body.items[0].id);
    else {
      expectRefusal(reply, 409, "idempotency_in_progress");
      expect(Number(reply.headers.get("retry-after"))).toBeGreaterThan(0);
    }
  }
  expect(both.some(({ status }) => status === 201)).toBe(true);
  expect((await create(key, { metadata: { key } })).body.id).toBe(made.body.items[0].id);
});

test("a buffered exec runs once when its key is repeated", async () => {
  const box = await createSandbox();
  const run = (body: object) =>
    server.api("POST", `/v1/sandboxes/${box.id}/exec`, { body, headers: { "idempotency-key": "exec-1" } });
  const command = "echo run >> /tmp/runs; wc -l < /tmp/runs";
  const [first, second] = [await run({ command }), await run({ command })];
  expect(first.body.stdout).toBe("1\n");
  expect(second.body).toEqual(first.body);
  expect(second.headers.get("idempotent-replayed")).toBe("true");
  expect(await output(box.id, "wc -l < /tmp/runs")).toBe("1");
});

test("refuses an invalid key, and creates no sandbox", async () => {
  const mark = randomUUID();
  for (const key of ["x".repeat(129), "a\tb"]) {
    const reply = await create(key, { metadata: { mark } });
    expectRefusal(reply, 400, "invalid_request");
    expect(reply.body.detail.toLowerCase()).toContain("idempotency-key");
  }
  const made = await server.api("GET", `/v1/sandboxes?metadata[mark]=${mark}`);
  expect(made.body.items).toEqual([]);
});

test("ignores the key of a streamed exec, and runs the command each time", async () => {
  const box = await createSandbox();
  for (const runs of ["1", "2"]) {
    const stream = await fetch(`${server.baseUrl}/v1/sandboxes/${box.id}/exec`, {
      method: "POST",
      headers: {
        authorization: `Bearer ${server.token}`,
        "content-type": "application/json",
        "idempotency-key": "stream-1",
      },
      body: JSON.stringify({ command: "echo run >> /tmp/runs", stream: true }),
    });
    expect(stream.status).toBe(200);
    expect(stream.headers.get("idempotent-replayed")).toBeNull();
    await stream.text();
    expect(await output(box.id, "wc -l < /tmp/runs")).toBe(runs);
  }
});

/**
 * Sends a request to a server that is killed before its response. Returns the next server's response to the same
 * request.
 */
async function answeredByTheNext(path: string, body: Record<string, unknown>): Promise<Reply> {
  const call = { body, headers: { "idempotency-key": randomUUID() } };
  await server.dieAt("request.unanswered", () =>
    expect(server.api("POST", path, call)).rejects.toThrow("fetch failed"),
  );
  // Reads when the request's lease ends: half a minute without a renewal.
  const endsAt = async (at: string) =>
    server.sql(`update idempotency_keys set expires_at = ${at} where key = $1`, [
      call.headers["idempotency-key"],
    ]);
  await endsAt("now() + interval '30 seconds'");
  expectRefusal(await server.api("POST", path, call), 409, "idempotency_in_progress");
  await endsAt("now()");
  const again = await server.api("POST", path, call);
  expect([again.status, again.headers.get("idempotent-replayed")]).toEqual([201, "true"]);
  return again;
}

test("after kill -9 behind a sandbox's creation, the repeated key returns the sandbox, and it runs", async () => {
  const mark = randomUUID();
  const { body } = await answeredByTheNext("/v1/sandboxes", {
    ...debian,
    metadata: { mark },
    preview_auth: true,
  });
  onTestFinished(() => deleteSandbox(body.id));
  expect(body).toMatchObject({ status: "running", preview_auth_token: null });
  expect(await output(body.id, "echo here")).toBe("here");
  const made = await server.api("GET", `/v1/sandboxes?metadata[mark]=${mark}`);
  expect(made.body.items).toMatchObject([{ id: body.id }]);
}, 60_000);

test("after kill -9 behind a project's creation, the repeated key returns the project", async () => {
  const name = `once-${randomUUID().slice(0, 8)}`;
  const { body } = await answeredByTheNext("/api/v1/projects", { name });
  onTestFinished(async () => void (await server.api("DELETE", `/api/v1/projects/${body.id}`)));
  expect(body).toMatchObject({ slug: name, webhook: null });
  const made = await server.api("GET", "/api/v1/projects?limit=100");
  expect(made.body.items.filter((one: { slug: string }) => one.slug === name)).toHaveLength(1);
}, 60_000);
