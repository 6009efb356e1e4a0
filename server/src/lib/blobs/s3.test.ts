import { createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Readable } from "node:stream";
import { buffer, text } from "node:stream/consumers";
import S3rver from "@20minutes/s3rver";
import { afterAll, expect, onTestFinished, test } from "vitest";
import { BlobExists, BlobNotFound } from "./blobs.ts";
import { S3Blobs, type S3Settings } from "./s3.ts";
import { elements, textOf } from "./s3-answers.ts";

const mib = 1024 ** 2;
const directory = await mkdtemp(join(tmpdir(), "kontor-s3-"));
const server = new S3rver({
  address: "127.0.0.1",
  port: 0,
  silent: true,
  directory,
  // Without this, the test server accepts wrong signatures.
  allowMismatchedSignatures: false,
  serviceEndpoint: "localhost",
  configureBuckets: [{ name: "kept", configs: [] }],
});
const { port } = await server.run();
afterAll(async () => {
  await server.close();
  await rm(directory, { recursive: true });
});

/** The test server knows only this key pair. */
const settings: S3Settings = {
  endpoint: `http://127.0.0.1:${port}`,
  bucket: "kept",
  region: "eu-central-1",
  accessKey: "S3RVER",
  secretKey: "S3RVER",
  prefix: "kontor/",
  isVirtualHosted: false,
};
const blobs = new S3Blobs(settings);
const content = (value: string) => Readable.from([Buffer.from(value)]);

test("returns stored bytes, whole or as a range, and their checksum", async () => {
  const stored = await blobs.put("a/hello", content("hello world"));
  expect(stored).toEqual({
    bytes: 11,
    sha256: "b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9",
  });
  expect(await text(await blobs.get("a/hello"))).toBe("hello world");
  expect(await text(await blobs.get("a/hello", { start: 6, end: 9 }))).toBe("wor");
  expect((await blobs.head("a/hello"))?.bytes).toBe(11);
  await blobs.put("a/empty", Readable.from([]));
  expect((await blobs.head("a/empty"))?.bytes).toBe(0);
});

test("uploads a large blob in parts, whatever the sizes of its pieces", async () => {
  const pieces = [5, 11 * mib, 1, 0, 8 * mib, 3].map((size) => randomBytes(size));
  const whole = Buffer.concat(pieces);
  const stored = await blobs.put("large", Readable.from(pieces));
  expect(stored).toEqual({
    bytes: whole.length,
    sha256: createHash("sha256").update(whole).digest("hex"),
  });
  const got = await buffer(await blobs.get("large"));
  expect(got.equals(whole)).toBe(true);
  const range = { start: 8 * mib - 2, end: 16 * mib + 5 };
  const some = await buffer(await blobs.get("large", range));
  expect(some.equals(whole.subarray(range.start, range.end))).toBe(true);
});

test("stores blobs of exactly one part and exactly two parts whole", async () => {
  for (const size of [8 * mib, 16 * mib]) {
    const bytes = Buffer.alloc(size, "k");
    await blobs.put("exact", Readable.from([bytes]));
    expect((await blobs.head("exact"))?.bytes).toBe(size);
  }
});

test("keeps the old blob when an upload fails midway", async () => {
  await blobs.put("kept", content("old"));
  const broken = (async function* () {
    yield randomBytes(20 * mib);
    throw new Error("cut");
  })();
  await expect(blobs.put("kept", broken)).rejects.toThrow("cut");
  expect(await text(await blobs.get("kept"))).toBe("old");
});

test("returns no size of a missing blob, fails to get it, and accepts its deletion", async () => {
  expect(await blobs.head("nothing")).toBeUndefined();
  await expect(blobs.get("nothing")).rejects.toBeInstanceOf(BlobNotFound);
  await blobs.delete("nothing");
  await blobs.put("soon-gone", content("x"));
  await blobs.delete("soon-gone");
  expect(await blobs.head("soon-gone")).toBeUndefined();
});

test("lists keys by prefix, in order", async () => {
  for (const key of ["list/b/1", "list/a/2", "listed"]) await blobs.put(key, content(key));
  expect(await blobs.list("list/")).toEqual(["list/a/2", "list/b/1"]);
  expect(await blobs.list("none/")).toEqual([]);
});

test("rejects a key that would leave the prefix", async () => {
  for (const key of ["../x", "a/../../x", "/etc/passwd", ""])
    await expect(blobs.put(key, content("x"))).rejects.toThrow("is not a blob key");
});

test("presigns a URL that serves one blob without a key, and no other blob", async () => {
  await blobs.put("signed", content("for a while"));
  const url = await blobs.presign("signed", { expiresInSeconds: 60, filename: "db.dump" });
  const answer = await fetch(url);
  expect([answer.status, await answer.text()]).toEqual([200, "for a while"]);
  expect(answer.headers.get("content-disposition")).toBe('attachment; filename="db.dump"');
  const other = await fetch(url.replace("/signed?", "/large?"));
  expect(other.status).toBe(403);
  await other.body?.cancel();
});

test("fails with a wrong key, without the secret in the error", async () => {
  const stranger = new S3Blobs({ ...settings, secretKey: "canary-secret" });
  const refusal = await stranger.put("x", content("x")).then(
    () => "stored",
    (error: Error) => error.message,
  );
  expect(refusal).toContain("403 SignatureDoesNotMatch");
  expect(refusal).not.toContain("canary-secret");
});

test("addresses the bucket in the host name when it is virtual-hosted", async () => {
  const there = new S3Blobs({ ...settings, endpoint: `http://localhost:${port}`, isVirtualHosted: true });
  const url = new URL(await there.presign("a", { expiresInSeconds: 60, filename: "a" }));
  expect([url.host, url.pathname]).toEqual([`kept.localhost:${port}`, "/kontor/a"]);
});

/** Starts a store with scripted responses, for cases that a real store cannot produce. */
async function startScriptedStore(
  answer: (request: IncomingMessage, response: ServerResponse) => void,
): Promise<S3Blobs> {
  const played: Server = createServer((request, response) => {
    request.resume().once("end", () => answer(request, response));
  }).listen(0, "127.0.0.1");
  await once(played, "listening");
  onTestFinished(() => void played.close());
  const { port: at } = played.address() as AddressInfo;
  return new S3Blobs({ ...settings, endpoint: `http://127.0.0.1:${at}` });
}

test("retries a busy store, but not a refusal", async () => {
  const asked: string[] = [];
  const busy = await startScriptedStore((request, response) => {
    asked.push(request.method ?? "");
    response.writeHead(asked.length === 1 ? 503 : 200).end();
  });
  await busy.put("a", content("x"));
  expect(asked).toEqual(["PUT", "PUT"]);
  const refuses = await startScriptedStore((_, response) =>
    response.writeHead(403).end("<Error><Code>No</Code></Error>"),
  );
  await expect(refuses.put("a", content("x"))).rejects.toThrow("403 No");
});

test("fails and aborts an upload whose completion reports an error with status 200", async () => {
  const asked: string[] = [];
  const store = await startScriptedStore((request, response) => {
    asked.push(request.method ?? "");
    const isEnd = request.method === "POST" && !request.url?.endsWith("uploads=");
    response.end(isEnd ? "<Error><Code>InternalError</Code></Error>" : "<R><UploadId>u&amp;1</UploadId></R>");
  });
  await expect(store.put("a", Readable.from([Buffer.alloc(9 * mib)]))).rejects.toThrow("InternalError");
  expect(asked).toEqual(["POST", "PUT", "PUT", "POST", "DELETE"]);
});

test("refuses the second of two puts with ifNoneMatch", async () => {
  const store = await startScriptedStore((request, response) => {
    expect(request.headers["if-none-match"]).toBe("*");
    response.writeHead(412).end();
  });
  await expect(store.put("a", content("x"), { ifNoneMatch: true })).rejects.toBeInstanceOf(BlobExists);
});

test("aborts unfinished uploads of dead processes, but not newer uploads", async () => {
  const deleted: string[] = [];
  const entry = (id: string, at: string) =>
    `<Upload><Key>kontor/backups/a</Key><UploadId>${id}</UploadId><Initiated>${at}</Initiated></Upload>`;
  const store = await startScriptedStore((request, response) => {
    if (request.method === "DELETE") deleted.push(request.url ?? "");
    response.end(`<R>${entry("old", "2030-01-01T00:00:00Z")}${entry("new", "2030-01-03T00:00:00Z")}</R>`);
  });
  await store.deleteUnfinished(new Date("2030-01-02T00:00:00Z"));
  expect(deleted).toEqual(["/kept/kontor/backups/a?uploadId=old"]);
});

test("decodes XML entities in names", () => {
  const xml = "<L><K>a &amp; b</K><K>&#60;c&#x3e;</K></L>";
  expect(elements(xml, "K").map((_, at) => textOf(`<K>${elements(xml, "K")[at]}</K>`, "K"))).toEqual([
    "a & b",
    "<c>",
  ]);
});
