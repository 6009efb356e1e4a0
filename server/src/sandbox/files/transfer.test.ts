import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { mkdir, readdir, readFile, symlink, writeFile } from "node:fs/promises";
import { createServer, type IncomingMessage, request as httpRequest } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { accessLogOf } from "#accounts/activity/access-log.ts";
import { testDatabase } from "../../../test/harness.ts";
import { createSandbox } from "../sandboxes/lifecycle/create.ts";
import { pauseSandbox } from "../sandboxes/lifecycle/pause.ts";
import { getSandbox } from "../sandboxes/sandboxes.ts";
import { terminateSandbox } from "../sandboxes/lifecycle/terminate.ts";
import { createInput, personWithTier, testHost } from "../testing/sandbox-app.ts";
import { uploadMaxBytes } from "./limits.ts";
import { presign, type TransferMethod } from "./presign.ts";
import { Presign, Presigned } from "./schema.ts";
import { transferHandler } from "./transfer-routes.ts";

const { db } = await testDatabase();
const host = await testHost(db);
const { app, clock } = host;
const { actor } = await personWithTier(db, "enterprise");

const handle = transferHandler(app);
/** Replaces the ingress, which maps host names to sandboxes. */
const server = createServer((request, response) => {
  const [label = ""] = (request.headers.host ?? "").split(".");
  void handle(label.replace(/^files-/, "sbx_"), request, response);
}).listen(0, "127.0.0.1");
await once(server, "listening");
afterAll(() => server.close());

async function sandbox(input: Record<string, unknown> = {}): Promise<{ id: string; root: string }> {
  const { id, machine_id } = await createSandbox(app, actor, createInput(input));
  const root = join(host.directory, "machines", machine_id ?? "", "root");
  return { id, root };
}

function signUrl(id: string, method: TransferMethod, path: string, expires_in = 600) {
  return presign(app, actor, id, method, Presign.parse({ path, expires_in }));
}

interface Answer {
  status: number;
  headers: IncomingMessage["headers"];
  body: Buffer;
  json: () => { code?: string; [field: string]: unknown };
}

/** Sends one request to a signed URL, as the ingress passes it to `host`. */
async function use(
  url: string,
  options: { method?: string; body?: Buffer; headers?: Record<string, string>; host?: string } = {},
): Promise<Answer> {
  const { hostname, pathname, search } = new URL(url);
  const request = httpRequest({
    port: (server.address() as AddressInfo).port,
    method: options.method ?? "GET",
    path: pathname + search,
    headers: { host: options.host ?? hostname, ...options.headers },
  });
  request.end(options.body);
  const [response] = (await once(request, "response")) as [IncomingMessage];
  const body = Buffer.concat(await Array.fromAsync(response as AsyncIterable<Buffer>));
  return {
    status: response.statusCode ?? 0,
    headers: response.headers,
    body,
    json: () => JSON.parse(body.toString()),
  };
}

function upload(url: string, body: Buffer, headers: Record<string, string> = {}): Promise<Answer> {
  return use(url, { method: "PUT", body, headers: { "content-length": String(body.length), ...headers } });
}

test("uploads and downloads the same bytes with signed URLs, as an attachment with the file's name", async () => {
  const { id } = await sandbox();
  const up = await signUrl(id, "PUT", "out/Größe 'x'.bin");
  expect(Presigned.safeParse(up).error).toBeUndefined();
  expect(up).toMatchObject({
    method: "PUT",
    path: "/workspace/out/Größe 'x'.bin",
    expires_at: "2030-01-01T00:10:00.000Z",
  });
  expect(up.url).toMatch(new RegExp(`^https://files-${id.slice(4)}\\.sbx\\.localhost:8443/`));
  const bytes = randomBytes(3_000_001);
  const written = await upload(up.url, bytes);
  expect([written.status, written.json()]).toEqual([200, { path: up.path, bytes_written: bytes.length }]);

  const { url } = await signUrl(id, "GET", up.path);
  const got = await use(url);
  expect(got.body.equals(bytes)).toBe(true);
  expect(got.headers).toMatchObject({
    "content-type": "application/octet-stream",
    "content-length": String(bytes.length),
    "content-disposition": `attachment; filename="Gr__e 'x'.bin"; filename*=UTF-8''Gr%C3%B6%C3%9Fe%20%27x%27.bin`,
    "x-content-type-options": "nosniff",
    "access-control-allow-origin": "*",
  });
  const head = await use(url, { method: "HEAD" });
  expect([head.status, head.body.length, head.headers["content-length"]]).toEqual([
    200,
    0,
    String(bytes.length),
  ]);
});

test("replaces a file by one with mode 0644, and accepts the URL again until it expires", async () => {
  const { id } = await sandbox();
  const { url } = await signUrl(id, "PUT", "/workspace/again", 60);
  for (const text of ["one", "another"]) expect((await upload(url, Buffer.from(text))).status).toBe(200);
  const { url: from } = await signUrl(id, "GET", "/workspace/again", 3600);
  expect((await use(from)).body.toString()).toBe("another");
  clock.advance(60_000);
  const late = await upload(url, Buffer.from("late"));
  expect([late.status, late.json().code]).toEqual([403, "url_expired"]);
  expect((await use(from)).body.toString()).toBe("another");
});

test("accepts a URL only for its own method, path, sandbox and time", async () => {
  const [{ id }, { id: other }] = [await sandbox(), await sandbox()];
  await upload((await signUrl(id, "PUT", "/workspace/a")).url, Buffer.from("a"));
  const { url } = await signUrl(id, "GET", "/workspace/a");
  const changeParameter = (name: string, value: string): string => {
    const copy = new URL(url);
    copy.searchParams.set(name, value);
    return copy.href;
  };
  const signature = new URL(url).searchParams.get("svc_sig") ?? "";
  const refusals = [
    await upload(url, Buffer.from("b")),
    await use(url, { host: `files-${other.slice(4)}.sbx.localhost` }),
    await use(changeParameter("path", "/workspace/b")),
    await use(changeParameter("path", "/workspace/a/")),
    await use(changeParameter("svc_exp", "9999999999")),
    await use(changeParameter("svc_exp", "")),
    await use(changeParameter("svc_sig", "")),
    await use(changeParameter("svc_sig", `${signature}A`)),
    await use(
      changeParameter(
        "svc_sig",
        signature.replace(/^./, (first) => (first === "A" ? "B" : "A")),
      ),
    ),
    await use(url.split("?")[0] ?? ""),
  ];
  for (const refusal of refusals) {
    expect([refusal.status, refusal.json().code]).toEqual([403, "signature_invalid"]);
  }
  expect((await use(url)).body.toString()).toBe("a");
});

test("verifies signed URLs of paths with separators, quotes and field names, each only for its own path", async () => {
  const { id } = await sandbox();
  const { url: first } = await signUrl(id, "GET", "/workspace/a");
  const expires = new URL(first).searchParams.get("svc_exp") ?? "";
  const paths = [
    "a\nb",
    `a\n${expires}`,
    `a",${expires}]`,
    `GET\n${id}\n${expires}\n/workspace/a`,
    `a?svc_exp=${expires}&path=b`,
    "a%0Ab",
    "a%2Fb",
    "a+b c",
    "a\\nb",
    "\u2028",
    "😀",
  ].map((name) => `/workspace/${name}`);
  const urls = await Promise.all(paths.map(async (path) => (await signUrl(id, "GET", path)).url));
  const signatures = urls.map((url) => new URL(url).searchParams.get("svc_sig") ?? "");
  expect(new Set(signatures).size).toBe(paths.length);
  for (const [index, url] of urls.entries()) {
    expect((await use(url)).json().code, paths[index]).toBe("file_not_found");
    const forged = new URL(url);
    forged.searchParams.set("svc_sig", signatures[(index + 1) % signatures.length] ?? "");
    expect((await use(forged.href)).json().code, paths[index]).toBe("signature_invalid");
  }
  const padded = new URL(first);
  padded.searchParams.set("svc_exp", `0${expires}`);
  expect((await use(padded.href)).json().code).toBe("signature_invalid");
});

test("refuses to sign a path that is not valid Unicode", () => {
  expect(Presign.safeParse({ path: "/workspace/\ud800" }).error?.issues[0]?.path).toEqual(["path"]);
});

test("refuses other methods with a list of the allowed ones, and serves a CORS preflight without a signature", async () => {
  const { id } = await sandbox();
  const { url } = await signUrl(id, "PUT", "/workspace/a");
  for (const method of ["POST", "DELETE", "PATCH"]) {
    const refused = await use(url, { method });
    expect([refused.status, refused.headers.allow]).toEqual([405, "GET, HEAD, PUT, OPTIONS"]);
  }
  const asked = await use(url.split("?")[0] ?? "", { method: "OPTIONS" });
  expect(asked.status).toBe(204);
  expect(asked.headers["access-control-allow-methods"]).toContain("PUT");
});

test("requires the size of an upload, and refuses one that is too large before reading it", async () => {
  const { id, root } = await sandbox();
  const { url } = await signUrl(id, "PUT", "/workspace/a");
  const chunked = await use(url, { method: "PUT", headers: { "transfer-encoding": "chunked" } });
  expect([chunked.status, chunked.json().code]).toEqual([411, "length_required"]);
  const { hostname, pathname, search } = new URL(url);
  const request = httpRequest({
    port: (server.address() as AddressInfo).port,
    method: "PUT",
    path: pathname + search,
    headers: { host: hostname, "content-length": String(uploadMaxBytes + 1) },
  }).on("error", () => {});
  request.write("x");
  const [response] = (await once(request, "response")) as [IncomingMessage];
  expect(response.statusCode).toBe(413);
  request.destroy();
  expect(await readdir(join(root, "workspace"))).toEqual([]);
});

test("keeps the previous file, and leaves no partial file, when an upload breaks off", async () => {
  const { id, root } = await sandbox();
  const { url } = await signUrl(id, "PUT", "/workspace/kept");
  await upload(url, Buffer.from("kept"));
  const { hostname, pathname, search } = new URL(url);
  const request = httpRequest({
    port: (server.address() as AddressInfo).port,
    method: "PUT",
    path: pathname + search,
    headers: { host: hostname, "content-length": "1000000" },
  }).on("error", () => {});
  request.write(Buffer.alloc(500_000));
  await expect.poll(async () => (await readdir(join(root, "workspace"))).length, { timeout: 10_000 }).toBe(2);
  request.destroy();
  await expect.poll(() => readdir(join(root, "workspace")), { timeout: 10_000 }).toEqual(["kept"]);
  expect(await readFile(join(root, "workspace/kept"), "utf8")).toBe("kept");
});

test("limits uploads to the writable roots: checks the path at the signature, and symlinks at each use", async () => {
  const { id, root } = await sandbox();
  for (const path of ["/etc/passwd", "/workspace/../etc/x", "/workspace", "/tmpfile", "../../x"]) {
    await expect(signUrl(id, "PUT", path)).rejects.toMatchObject({ code: "not_permitted", status: 403 });
  }
  await mkdir(join(root, "etc"), { recursive: true });
  await symlink("../etc", join(root, "workspace/out"));
  const { url } = await signUrl(id, "PUT", "/workspace/out/x");
  const refused = await upload(url, Buffer.alloc(300_000));
  expect([refused.status, refused.json().code]).toEqual([403, "not_permitted"]);
  expect(await readdir(join(root, "etc"))).toEqual([]);
});

test("resumes a download by range, and sends the whole file if it changed meanwhile", async () => {
  const { id } = await sandbox();
  const { url: to } = await signUrl(id, "PUT", "/workspace/long");
  const bytes = randomBytes(700_000);
  await upload(to, bytes);
  const { url } = await signUrl(id, "GET", "/workspace/long");
  const ranges: [string, number, number][] = [
    ["bytes=0-9", 0, 10],
    ["bytes=300000-", 300_000, 700_000],
    ["bytes=-5", 699_995, 700_000],
    ["bytes=699999-9999999", 699_999, 700_000],
    ["bytes=100-400099", 100, 400_100],
  ];
  for (const [range, from, to_] of ranges) {
    const part = await use(url, { headers: { range } });
    expect(part.status).toBe(206);
    expect(part.headers["content-range"]).toBe(`bytes ${from}-${to_ - 1}/700000`);
    expect(part.body.equals(bytes.subarray(from, to_))).toBe(true);
  }
  const past = await use(url, { headers: { range: "bytes=700000-" } });
  expect([past.status, past.json().code]).toEqual([416, "range_not_satisfiable"]);
  for (const range of ["bytes=0-1,5-6", "lines=1-2", "bytes=9-1", "bytes=-"]) {
    expect((await use(url, { headers: { range } })).status).toBe(200);
  }
  const { etag = "" } = (await use(url, { method: "HEAD" })).headers;
  const same = { range: "bytes=1-1", "if-range": etag };
  expect((await use(url, { headers: same })).status).toBe(206);
  await upload(to, randomBytes(700_001));
  expect((await use(url, { headers: same })).body.length).toBe(700_001);
});

test("explains in words why a path that is not a file and a signed URL of a deleted sandbox are refused", async () => {
  const { id } = await sandbox();
  const missing = await use((await signUrl(id, "GET", "/workspace/nothing")).url);
  expect([missing.status, missing.json().code]).toEqual([404, "file_not_found"]);
  const directory = await use((await signUrl(id, "GET", "/workspace")).url);
  expect([directory.status, directory.json().code]).toEqual([400, "is_directory"]);
  const { url } = await signUrl(id, "GET", "/workspace/a");
  await terminateSandbox(app, actor, id);
  const gone = await use(url);
  expect([gone.status, gone.json().code]).toEqual([409, "sandbox_terminated"]);
  await expect(signUrl(id, "GET", "/workspace/a")).rejects.toMatchObject({
    code: "sandbox_terminated",
    status: 409,
  });
});

test("signs URLs for a paused sandbox; a valid URL wakes the sandbox if allowed, an invalid URL never does", async () => {
  const { id } = await sandbox({ auto_resume: true });
  await upload((await signUrl(id, "PUT", "/workspace/kept")).url, Buffer.from("kept"));
  await pauseSandbox(app, actor, id);
  const { url } = await signUrl(id, "GET", "/workspace/kept");
  expect((await use(`${url}x`)).status).toBe(403);
  expect((await getSandbox(app, actor, id)).status).toBe("paused");
  const answers = await Promise.all(Array.from({ length: 8 }, () => use(url)));
  expect(answers.map(({ body }) => body.toString())).toEqual(Array.from({ length: 8 }, () => "kept"));
  expect((await getSandbox(app, actor, id)).status).toBe("running");

  const { id: asleep } = await sandbox();
  await pauseSandbox(app, actor, asleep);
  const refused = await upload((await signUrl(asleep, "PUT", "/workspace/a")).url, Buffer.alloc(200_000));
  expect([refused.status, refused.json().code]).toEqual([409, "sandbox_paused"]);
});

test("does not wake a paused sandbox by a viewer's URL, even after the viewer mark is removed from the URL", async () => {
  const { id } = await sandbox({ auto_resume: true });
  await upload((await signUrl(id, "PUT", "/workspace/kept")).url, Buffer.from("kept"));
  const workspaces = actor.workspaces.map((workspace) => ({ ...workspace, role: "viewer" as const }));
  const input = Presign.parse({ path: "/workspace/kept", expires_in: 600 });
  const { url } = await presign(app, { ...actor, workspaces }, id, "GET", input);
  expect((await use(url)).body.toString()).toBe("kept");
  await pauseSandbox(app, actor, id);
  const refused = await use(url);
  expect([refused.status, refused.json().code]).toEqual([409, "sandbox_paused"]);
  expect((await use(url.replace("svc_wake=no&", ""))).status).toBe(403);
  expect((await getSandbox(app, actor, id)).status).toBe("paused");
});

test("aborts the response when the file becomes shorter during the download", async () => {
  const { id, root } = await sandbox();
  await writeFile(join(root, "workspace/shrinks"), Buffer.alloc(50_000_000));
  const { hostname, pathname, search } = new URL((await signUrl(id, "GET", "/workspace/shrinks")).url);
  const request = httpRequest({
    port: (server.address() as AddressInfo).port,
    path: pathname + search,
    headers: { host: hostname },
  }).end();
  const [response] = (await once(request, "response")) as [IncomingMessage];
  await writeFile(join(root, "workspace/shrinks"), "");
  await expect(Array.fromAsync(response as AsyncIterable<Buffer>)).rejects.toThrow("aborted");
});

test("audits each use of a URL with the client's address, and without the contents", async () => {
  const { id, root } = await sandbox();
  await mkdir(join(root, "workspace"), { recursive: true });
  await writeFile(join(root, "workspace/noted"), "canary-bytes");
  const { url } = await signUrl(id, "GET", "/workspace/noted");
  expect((await use(url)).status).toBe(200);
  await use(url.replace(/svc_sig=[^&]*/, "svc_sig=forged"));
  await accessLogOf(app).flush();
  const entries = await db
    .selectFrom("activity")
    .selectAll()
    .where("target_id", "=", id)
    .where("action", "=", "presigned_url.used")
    .execute();
  expect(entries).toMatchObject([
    { actor_label: "presigned URL", ip: "127.0.0.1", detail: { method: "GET", path: "/workspace/noted" } },
  ]);
  expect(entries[0]!.workspace_id).toBe(actor.workspaces[0]!.id);
  expect(JSON.stringify(entries)).not.toContain("canary-bytes");
  expect(JSON.stringify(entries)).not.toContain("svc_sig");
});
