/**
 * Blobs in an object store with the S3 protocol: Amazon's or a compatible store, with the bucket in the path or in the
 * host name. A large blob is uploaded in parts, and each part is hashed and signed. Memory holds at most two parts in
 * flight while a third fills. A failed part is sent again, and an upload that cannot complete is aborted. A blob
 * appears only after the store's own completion step, so it is always whole.
 */
import { createHash } from "node:crypto";
import { Readable } from "node:stream";
import type { ReadableStream } from "node:stream/web";
import { setTimeout as sleep } from "node:timers/promises";
import { AwsV4Signer } from "aws4fetch";
import { BlobExists, type BlobInfo, BlobNotFound, type Blobs, requireKey } from "./blobs.ts";
import { isTransient, elements, S3Error, textOf } from "./s3-answers.ts";

export interface S3Settings {
  /** For example `https://s3.example.com`, optionally with a port. */
  endpoint: string;
  bucket: string;
  region: string;
  accessKey: string;
  secretKey: string;
  /** Prefix of all keys. Ends with a slash, or is empty. */
  prefix: string;
  /** True if the bucket is a label of the host name; otherwise it is the first path segment. */
  isVirtualHosted: boolean;
}

interface Request {
  query?: Record<string, string>;
  headers?: Record<string, string>;
  body?: Buffer | string;
}

const mib = 1024 ** 2;
/**
 * Returns the size of the part with this number. A store accepts 10,000 parts of 5 MiB to 5 GiB. These sizes allow 16
 * GB in small parts, and about 256 GB in total.
 */
const partBytes = (number: number) => (number <= 2_000 ? 8 * mib : 32 * mib);
const tries = 5;
/** Timeout for the response headers. A part at 0.3 MB/s still arrives in time. */
const answerMs = 120_000;

export class S3Blobs implements Blobs {
  readonly #settings: S3Settings;
  readonly #signingKeys = new Map<string, ArrayBuffer>();

  constructor(settings: S3Settings) {
    this.#settings = settings;
  }

  async put(key: string, content: AsyncIterable<Buffer>, options: { ifNoneMatch?: boolean } = {}) {
    const hash = createHash("sha256");
    const condition: Record<string, string> = options.ifNoneMatch ? { "if-none-match": "*" } : {};
    let bytes = 0;
    let upload: Upload | undefined;
    try {
      let number = 1;
      for await (const { part, isLast } of parts(content)) {
        hash.update(part);
        bytes += part.length;
        if (number === 1 && isLast) {
          await this.#send("PUT", key, { body: part, headers: condition });
          break;
        }
        upload ??= await this.#beginUpload(key);
        await upload.send(number, part);
        number += 1;
      }
      await upload?.complete(condition);
    } catch (error) {
      await upload?.abort();
      throw error instanceof S3Error && error.status === 412
        ? new BlobExists(`The blob ${key} already exists.`)
        : error;
    }
    return { bytes, sha256: hash.digest("hex") };
  }

  async get(key: string, range?: { start: number; end: number }): Promise<Readable> {
    const headers: Record<string, string> = range ? { range: `bytes=${range.start}-${range.end - 1}` } : {};
    const answer = await this.#send("GET", key, { headers });
    if (answer.body === null) return Readable.from([]);
    return Readable.fromWeb(answer.body as ReadableStream);
  }

  async head(key: string): Promise<BlobInfo | undefined> {
    try {
      const { headers } = await this.#send("HEAD", key);
      const modifiedAt = new Date(headers.get("last-modified") ?? 0);
      return { bytes: Number(headers.get("content-length")), modifiedAt };
    } catch (error) {
      if (error instanceof BlobNotFound) return undefined;
      throw error;
    }
  }

  async delete(key: string): Promise<void> {
    await this.#send("DELETE", key).catch((error: unknown) => {
      if (!(error instanceof BlobNotFound)) throw error;
    });
  }

  async list(prefix: string): Promise<string[]> {
    const own = this.#settings.prefix;
    const keys: string[] = [];
    const query: Record<string, string> = { "list-type": "2", prefix: own + prefix };
    for (;;) {
      const page = await (await this.#send("GET", undefined, { query })).text();
      keys.push(...elements(page, "Contents").map((entry) => textOf(entry, "Key").slice(own.length)));
      const next = textOf(page, "NextContinuationToken");
      if (next === "") return keys.toSorted();
      query["continuation-token"] = next;
    }
  }

  async deleteUnfinished(before: Date): Promise<void> {
    const own = this.#settings.prefix;
    const query: Record<string, string> = { uploads: "", prefix: own };
    for (;;) {
      const page = await (await this.#send("GET", undefined, { query })).text();
      for (const entry of elements(page, "Upload")) {
        if (new Date(textOf(entry, "Initiated")) >= before) continue;
        const of = textOf(entry, "Key").slice(own.length);
        await this.#send("DELETE", of, { query: { uploadId: textOf(entry, "UploadId") } });
      }
      if (textOf(page, "IsTruncated") !== "true") return;
      query["key-marker"] = textOf(page, "NextKeyMarker");
      query["upload-id-marker"] = textOf(page, "NextUploadIdMarker");
    }
  }

  async presign(
    key: string,
    { expiresInSeconds, filename }: { expiresInSeconds: number; filename: string },
  ): Promise<string> {
    const url = this.#url(key, {
      "X-Amz-Expires": String(expiresInSeconds),
      "response-content-disposition": `attachment; filename="${filename}"`,
    });
    const signed = await this.#signer(url, { method: "GET", signQuery: true }).sign();
    return signed.url.href;
  }

  async #beginUpload(key: string): Promise<Upload> {
    const answer = await (await this.#send("POST", key, { query: { uploads: "" } })).text();
    return new Upload(textOf(answer, "UploadId"), (method, request) => this.#send(method, key, request));
  }

  /** Sends a request with retries of transient failures. Returns a 2xx response, and throws for any other. */
  async #send(method: string, key: string | undefined, request: Request = {}): Promise<Response> {
    const url = this.#url(key, request.query ?? {});
    for (let attempt = 1; ; attempt++) {
      try {
        return await this.#askOnce(method, url, key, request);
      } catch (error) {
        if (attempt === tries || !isTransient(error)) throw error;
        await sleep(Math.random() * 100 * 4 ** attempt, undefined, { ref: false });
      }
    }
  }

  async #askOnce(
    method: string,
    url: string,
    key: string | undefined,
    { headers = {}, body }: Request,
  ): Promise<Response> {
    const late = new AbortController();
    const timer = setTimeout(() => late.abort(new Error("the object store does not respond")), answerMs);
    try {
      // The signature covers the body, so the store refuses a body that changed in transit.
      const contentHash = createHash("sha256")
        .update(body ?? "")
        .digest("hex");
      const signed = await this.#signer(url, {
        method,
        headers: { ...headers, "x-amz-content-sha256": contentHash },
      }).sign();
      const answer = await fetch(signed.url, {
        method,
        headers: signed.headers,
        body: typeof body === "string" || body === undefined ? (body ?? null) : new Uint8Array(body),
        redirect: "manual",
        signal: late.signal,
      });
      if (answer.ok) return answer;
      const said = method === "HEAD" ? "" : (await answer.text()).slice(0, 10_000);
      const code = textOf(said, "Code");
      if (answer.status === 404 && key !== undefined && code !== "NoSuchBucket")
        throw new BlobNotFound(`The blob ${key} does not exist.`);
      throw new S3Error(answer.status, code, textOf(said, "Message"));
    } finally {
      clearTimeout(timer);
    }
  }

  #signer(url: string, more: { method: string; headers?: Record<string, string>; signQuery?: boolean }) {
    const { accessKey, secretKey, region } = this.#settings;
    return new AwsV4Signer({
      url,
      ...more,
      accessKeyId: accessKey,
      secretAccessKey: secretKey,
      region,
      service: "s3",
      cache: this.#signingKeys,
    });
  }

  #url(key: string | undefined, query: Record<string, string>): string {
    const { endpoint, bucket, prefix, isVirtualHosted } = this.#settings;
    const url = new URL(endpoint);
    if (isVirtualHosted) url.hostname = `${bucket}.${url.hostname}`;
    const path = [isVirtualHosted ? [] : [bucket], key === undefined ? [] : [prefix + requireKey(key)]];
    url.pathname = `/${path.flat().join("/")}`;
    for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
    return url.href;
  }
}

/** A multipart upload: one part is in flight while the caller fills the next. */
class Upload {
  readonly #id: string;
  readonly #ask: (method: string, request: Request) => Promise<Response>;
  readonly #tags: string[] = [];
  #sending: Promise<void> | undefined;

  constructor(id: string, ask: (method: string, request: Request) => Promise<Response>) {
    if (id === "") throw new S3Error(200, "", "the store started an upload without an id");
    this.#id = id;
    this.#ask = ask;
  }

  async send(number: number, body: Buffer): Promise<void> {
    await this.#sending;
    const query = { partNumber: String(number), uploadId: this.#id };
    this.#sending = this.#ask("PUT", { query, body }).then(async (answer) => {
      this.#tags[number - 1] = answer.headers.get("etag") ?? "";
      await answer.arrayBuffer();
    });
    // The next `await` of the part rejects. Until then, this handler prevents an unhandled rejection.
    this.#sending.catch(() => {});
  }

  async complete(headers: Record<string, string>): Promise<void> {
    await this.#sending;
    const list = this.#tags.map(
      (tag, at) => `<Part><PartNumber>${at + 1}</PartNumber><ETag>${tag}</ETag></Part>`,
    );
    const body = `<CompleteMultipartUpload xmlns="http://s3.amazonaws.com/doc/2006-03-01/">${list.join("")}</CompleteMultipartUpload>`;
    const query = { uploadId: this.#id };
    const said = await (await this.#ask("POST", { query, body, headers })).text();
    // A slow store sends status 200 first, and reports the outcome in the body.
    if (/<Error[\s>]/.test(said)) throw new S3Error(200, textOf(said, "Code"), textOf(said, "Message"));
  }

  /** If the abort gets no response, the next `deleteUnfinished` deletes the parts. */
  async abort(): Promise<void> {
    await this.#sending?.catch(() => {});
    await this.#ask("DELETE", { query: { uploadId: this.#id } }).catch(() => {});
  }
}

/** Joins pieces of any size into parts of equal size. Yields at least one part, and marks the last. */
async function* parts(content: AsyncIterable<Buffer>): AsyncGenerator<{ part: Buffer; isLast: boolean }> {
  let number = 1;
  let part = Buffer.allocUnsafe(partBytes(number));
  let filled = 0;
  for await (const piece of content) {
    for (let at = 0; at < piece.length;) {
      // A full part waits for more content, because the last part must be marked.
      if (filled === part.length) {
        yield { part, isLast: false };
        number += 1;
        part = Buffer.allocUnsafe(partBytes(number));
        filled = 0;
      }
      const copied = piece.copy(part, filled, at);
      filled += copied;
      at += copied;
    }
  }
  yield { part: part.subarray(0, filled), isLast: true };
}
