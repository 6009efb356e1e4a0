import { expect, test } from "vitest";
import { eventually, expectRefusal } from "./support/answers.ts";
import {
  createSandbox,
  debian,
  deleteSandbox,
  exec,
  getSandbox,
  readFile,
  server,
  tryExec,
  writeFile,
} from "./support/fixtures.ts";

const timestamp = expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$/);
const unknownId = "sbx_aaaaaaaaaaaaaaaaaaaa";

test("creates a sandbox, runs code, keeps files and deletes the sandbox", async () => {
  const made = await server.api("POST", "/v1/sandboxes", { body: { ...debian, metadata: { run: "one" } } });
  expect(made.status).toBe(201);
  const box = made.body;
  expect(box).toEqual({
    id: expect.stringMatching(/^sbx_[a-z0-9]{1,40}$/),
    status: "running",
    transition: null,
    termination_reason: null,
    template: "debian-12",
    template_id: null,
    substituted: null,
    size: "small",
    network: "restricted",
    cpu: 1,
    memory_mb: 1024,
    region: "eu-1",
    volume_id: null,
    created_at: timestamp,
    expires_at: timestamp,
    on_timeout: "kill",
    auto_resume: false,
    endpoints: {
      exec: `/v1/sandboxes/${box.id}/exec`,
      files: `/v1/sandboxes/${box.id}/files`,
      pause: `/v1/sandboxes/${box.id}/pause`,
      resume: `/v1/sandboxes/${box.id}/resume`,
    },
    metadata: { run: "one" },
    allow_domains: null,
    disk_gb: expect.any(Number),
    preview_host_base: `${box.id.slice(4)}.sbx.localhost:${server.description.env["KONTOR_TLS_PORT"]}`,
    egress_denied: 0,
    forked_from: null,
    snapshot_id: null,
  });
  expect(Date.parse(box.expires_at) - Date.parse(box.created_at)).toBe(600_000);
  expect((await exec(box.id, "echo $((6 * 7))")).stdout).toBe("42\n");
  await writeFile(box.id, "kept", "here");
  expect((await readFile(box.id, "kept")).status).toBe(200);

  const gone = await server.api("DELETE", `/v1/sandboxes/${box.id}`);
  expect(gone.status).toBe(200);
  expect(gone.body).toEqual({
    ...box,
    status: "terminated",
    termination_reason: "requested",
    preview_host_base: null,
    egress_denied: null,
  });
  expect(await getSandbox(box.id)).toEqual(gone.body);
  for (const refused of [
    await tryExec(box.id, "true"),
    await readFile(box.id, "kept"),
    await writeFile(box.id, "kept", "x"),
    await server.api("POST", `/v1/sandboxes/${box.id}/timeout`, { body: { timeout_seconds: 60 } }),
  ]) {
    expectRefusal(refused, 409, "sandbox_terminated");
    expect(refused.body.termination_reason).toBe("requested");
  }
});

test("the sandbox's record contains every field of the create request", async () => {
  const box = await createSandbox({
    size: "medium",
    network: "off",
    timeout_seconds: 3600,
    preview_auth: true,
    auto_resume: true,
    metadata: { owner: "ä", empty: "" },
    region: "eu-1",
  });
  expect(box).toMatchObject({
    size: "medium",
    cpu: 2,
    memory_mb: 4096,
    network: "off",
    auto_resume: true,
    metadata: { owner: "ä", empty: "" },
    preview_auth_token: expect.stringMatching(/^\S{20,}$/),
  });
  expect(await getSandbox(box.id)).toMatchObject({ preview_auth_token: box["preview_auth_token"] });
});

test("a repeated delete returns the same response, and two concurrent deletes both succeed", async () => {
  const box = await createSandbox();
  const both = await Promise.all([1, 2].map(() => server.api("DELETE", `/v1/sandboxes/${box.id}`)));
  expect(both.map(({ status }) => status)).toEqual([200, 200]);
  expect(both[0]?.body).toEqual(both[1]?.body);
  const again = await server.api("DELETE", `/v1/sandboxes/${box.id}`);
  expect([again.status, again.body]).toEqual([200, both[0]?.body]);
});

test("a delete ends the processes in the sandbox at once", async () => {
  const box = await createSandbox();
  const running = tryExec(box.id, "sleep 60");
  await exec(box.id, "true");
  await deleteSandbox(box.id);
  expectRefusal(await running, 409, "sandbox_terminated");
});

test("lists sandboxes newest first, in pages without gaps or repetitions, and filters the list", async () => {
  const mark = `list-${Date.now()}`;
  const made: string[] = [];
  for (let n = 0; n < 5; n += 1) {
    made.unshift(
      (await createSandbox({ metadata: { mark, parity: n % 2 ? "odd" : "even", "we[i]rd &k": `[${n}]` } }))
        .id,
    );
  }
  const list = async (query: string) => {
    const reply = await server.api("GET", `/v1/sandboxes?metadata[mark]=${mark}${query}`);
    expect(reply.status, JSON.stringify(reply.body)).toBe(200);
    return reply.body as { items: { id: string }[]; next_cursor: string | null };
  };
  const ids = ({ items }: { items: { id: string }[] }) => items.map(({ id }) => id);

  const whole = await list("");
  expect(ids(whole)).toEqual(made);
  expect(whole.next_cursor).toBeNull();
  expect(whole.items[0]).toEqual(await getSandbox(made[0] ?? ""));

  const paged: string[] = [];
  let cursor: string | null = "";
  while (cursor !== null) {
    const page = await list(`&limit=2${cursor && `&cursor=${encodeURIComponent(cursor)}`}`);
    expect(page.items.length).toBeLessThanOrEqual(2);
    paged.push(...ids(page));
    cursor = page.next_cursor;
  }
  expect(paged).toEqual(made);

  expect(ids(await list("&metadata[parity]=odd"))).toEqual([made[1], made[3]]);
  expect(ids(await list("&metadata[parity]=ODD"))).toEqual([]);
  expect(ids(await list(`&${encodeURIComponent("metadata[we[i]rd &k]")}=%5B3%5D`))).toEqual([made[1]]);
  await deleteSandbox(made[0] ?? "");
  expect(ids(await list("&status=running"))).toEqual(made.slice(1));
  expect(ids(await list("&status=terminated"))).toEqual([made[0]]);
  expect(ids(await list("&status=running&metadata[parity]=even"))).toEqual([made[2], made[4]]);
});

test("refuses an invalid list query, and names the field", async () => {
  for (const query of ["limit=0", "limit=101", "limit=x", "status=asleep", "cursor=made-up", "sort=asc"]) {
    const reply = await server.api("GET", `/v1/sandboxes?${query}`);
    expectRefusal(reply, 400, "invalid_request");
    expect(reply.body.detail).toContain(query.split("=")[0]);
  }
});

test("keep-alive sets the deadline from now, whatever time was left", async () => {
  const box = await createSandbox({ timeout_seconds: 1200 });
  const before = Date.now();
  const kept = await server.api("POST", `/v1/sandboxes/${box.id}/timeout`, { body: { timeout_seconds: 60 } });
  expect(kept.status).toBe(200);
  const deadline = Date.parse(kept.body.expires_at);
  expect(deadline).toBeGreaterThanOrEqual(before + 60_000);
  expect(deadline).toBeLessThanOrEqual(Date.now() + 60_000);
  expect(kept.body).toEqual({ ...box, expires_at: kept.body.expires_at, egress_denied: expect.any(Number) });
  for (const seconds of [86_401, 2 ** 40]) {
    const reply = await server.api("POST", `/v1/sandboxes/${box.id}/timeout`, {
      body: { timeout_seconds: seconds },
    });
    expectRefusal(reply, 400, "timeout_too_long");
    expect(reply.body.allowed).toBe(86_400);
  }
  for (const seconds of [9, 1.5, "60", null]) {
    const reply = await server.api("POST", `/v1/sandboxes/${box.id}/timeout`, {
      body: { timeout_seconds: seconds },
    });
    expectRefusal(reply, 400, "invalid_request");
    expect(reply.body.detail).toContain("timeout_seconds");
  }
});

test("terminates a sandbox at its deadline, and reports the deadline as the reason", async () => {
  const box = await createSandbox({ timeout_seconds: 10 });
  const ended = await eventually(
    () => getSandbox(box.id),
    ({ status }) => status === "terminated",
  );
  expect(ended).toMatchObject({ termination_reason: "timeout", expires_at: box.expires_at });
  expect(Date.now()).toBeGreaterThanOrEqual(Date.parse(box.expires_at));
  const refused = await tryExec(box.id, "true");
  expectRefusal(refused, 409, "sandbox_terminated");
  expect(refused.body.termination_reason).toBe("timeout");
});

test("the limits endpoint returns the plan's limits", async () => {
  const { status, body } = await server.api("GET", "/v1/sandboxes/limits");
  expect(status).toBe(200);
  expect(body).toMatchObject({
    tier: "enterprise",
    sizes: [
      { name: "small", cpu: 1, memory_mb: 1024 },
      { name: "medium", cpu: 2, memory_mb: 4096 },
      { name: "large", cpu: 4, memory_mb: 8192 },
    ],
    max_timeout_seconds: 86_400,
    snapshot_cap: 1000,
    regions: [{ code: "eu-1", name: expect.any(String), default: true }],
    metadata_max_keys: 16,
    file_max_bytes: 16 * 1024 ** 2,
    batch_max_files: 64,
    batch_max_bytes: 48 * 1024 ** 2,
    upload_max_bytes: 512 * 1024 ** 2,
    webhooks_max: 10,
    can_expose_ports: true,
    can_build_templates: true,
    paused_retention_days: null,
  });
  expect(Array.isArray(body.default_egress_allowlist)).toBe(true);
  expect(body.max_concurrent_sandboxes).toBeGreaterThan(0);
  expect(body.templates).toContainEqual(
    expect.objectContaining({ name: "debian-12", state: "ready", substituted: false }),
  );
});

test("refuses an invalid create request, names the field, and creates no sandbox", async () => {
  const count = async () => (await server.api("GET", "/v1/sandboxes?limit=100")).body.items.length;
  const before = await count();
  for (const [body, words] of [
    [{}, ["template"]],
    [{ template: "debian" }, ["template", "debian-12"]],
    [{ template: 5 }, ["template"]],
    [{ ...debian, size: "huge" }, ["size"]],
    [{ ...debian, network: "on" }, ["network"]],
    [{ ...debian, timeout_seconds: 9 }, ["timeout_seconds"]],
    [{ ...debian, timeout_seconds: "600" }, ["timeout_seconds"]],
    [{ ...debian, on_timeout: "die" }, ["on_timeout"]],
    [{ ...debian, auto_resume: 1 }, ["auto_resume"]],
    [{ ...debian, region: "moon-1" }, ["region", "moon-1"]],
    [{ ...debian, metadata: { n: 1 } }, ["metadata", "n"]],
    [{ ...debian, metadata: { "": "x" } }, ["metadata"]],
    [{ ...debian, metadata: { x: "x".repeat(513) } }, ["metadata", "x"]],
    [
      { ...debian, metadata: Object.fromEntries(Array.from({ length: 17 }, (_, n) => [`k${n}`, ""])) },
      ["metadata", "16"],
    ],
    [{ ...debian, env: { "A=B": "x" } }, ["env"]],
    [{ ...debian, env: { A: "x".repeat(65_536) } }, ["env", "64 KiB"]],
    [{ ...debian, allow_domains: ["https://example.com/"] }, ["allow_domains"]],
    [{ ...debian, tempalte: "x" }, ["tempalte", "template"]],
    [{ ...debian, timeout: 60 }, ["timeout"]],
    [[], []],
  ] as const) {
    const reply = await server.api("POST", "/v1/sandboxes", { body });
    expectRefusal(reply, 400, "invalid_request");
    for (const word of words) expect(reply.body.detail, JSON.stringify(body).slice(0, 200)).toContain(word);
  }
  const broken = await server.api("POST", "/v1/sandboxes", { text: '{"template": ' });
  expectRefusal(broken, 400, "invalid_request");
  const form = await server.api("POST", "/v1/sandboxes", {
    text: "template=debian-12",
    headers: { "content-type": "application/x-www-form-urlencoded" },
  });
  expectRefusal(form, 415, "unsupported_media_type");
  expect(await count()).toBe(before);
});

test("accepts allow_domains, and ignores it when the network is off or open", async () => {
  for (const network of ["off", "open"]) {
    const box = await createSandbox({ network, allow_domains: ["example.com"] });
    expect(box["network"]).toBe(network);
  }
});

test("responds with the same 404 to an unknown id and an invalid id", async () => {
  for (const id of [unknownId, "sbx_x", "nonsense", "sbx_aaaaaaaaaaaaaaaaaaa%27"]) {
    const reply = await server.api("GET", `/v1/sandboxes/${id}`);
    expectRefusal(reply, 404, "sandbox_not_found");
  }
  const path = `/v1/sandboxes/${unknownId}`;
  expectRefusal(await tryExec(unknownId, "true"), 404, "sandbox_not_found");
  expectRefusal(await readFile(unknownId, "/tmp/x"), 404, "sandbox_not_found");
  expectRefusal(await server.api("GET", `${path}/metrics`), 404, "sandbox_not_found");
  expectRefusal(await server.api("DELETE", path), 404, "sandbox_not_found");
  expectRefusal(
    await server.api("POST", `${path}/timeout`, { body: { timeout_seconds: 60 } }),
    404,
    "sandbox_not_found",
  );
});

test("many concurrent creates with an exec in the same request succeed", async () => {
  const outputs = await Promise.all(
    Array.from({ length: 6 }, async (_, n) => {
      const box = await createSandbox();
      return (await exec(box.id, `echo ${n} $(hostname)`)).stdout === `${n} ${box.id.replace("_", "-")}\n`;
    }),
  );
  expect(outputs).toEqual(Array.from({ length: 6 }, () => true));
});
