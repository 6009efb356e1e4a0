/**
 * Blobs in an object store that speaks S3: Amazon's own or any that is compatible, at any address, buckets in the
 * path or in the host name. A large one goes up in parts, each hashed and signed as it is, two of them in memory at
 * most while a third fills; a part that fails is sent again, and an upload that cannot be ended is taken back. What
 * appears under a key is whole, for the store's own last step puts it there.
 */
import { createHash } from "node:crypto";
import { Readable } from "node:stream";
import type { ReadableStream } from "node:stream/web";
import { setTimeout as sleep } from "node:timers/promises";
import { AwsV4Signer } from "aws4fetch";
import { BlobExists, type BlobInfo, BlobNotFound, type Blobs, requireKey } from "./blobs.ts";
import { asksAgain, elements, S3Error, textOf } from "./s3-answers.ts";

export interface S3Settings {
  /** `https://s3.example.com`, also with a port. */
  endpoint: string;
  bucket: string;
  region: string;
  accessKey: string;
  secretKey: string;
  /** What all keys begin with; ends in a slash, or is empty. */
  prefix: string;
  /** The bucket is a label of the host's name; the first segment of the path otherwise. */
  isVirtualHosted: boolean;
}

interface Request {
  query?: Record<string, string>;
  headers?: Record<string, string>;
  body?: Buffer | string;
}

const mib = 1024 ** 2;
/** A store takes 10,000 parts of 5 MiB to 5 GiB: so 16 GB in small ones, and a quarter of a terabyte in all. */
const partBytes = (number: number) => (number <= 2_000 ? 8 * mib : 32 * mib);
const tries = 5;
/** Until an answer's headers are here; a store that is slower than 0.3 MB/s for one part is none. */
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
          await this.#ask("PUT", key, { body: part, headers: condition });
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
        ? new BlobExists(`There is a blob ${key} already.`)
        : error;
    }
    return { bytes, sha256: hash.digest("hex") };
  }

  async get(key: string, range?: { start: number; end: number }): Promise<Readable> {
    const headers: Record<string, string> = range ? { range: `bytes=${range.start}-${range.end - 1}` } : {};
    const answer = await this.#ask("GET", key, { headers });
    if (answer.body === null) return Readable.from([]);
    return Readable.fromWeb(answer.body as ReadableStream);
  }

  async head(key: string): Promise<BlobInfo | undefined> {
    try {
      const { headers } = await this.#ask("HEAD", key);
      const modifiedAt = new Date(headers.get("last-modified") ?? 0);
      return { bytes: Number(headers.get("content-length")), modifiedAt };
    } catch (error) {
      if (error instanceof BlobNotFound) return undefined;
      throw error;
    }
  }

  async delete(key: string): Promise<void> {
    await this.#ask("DELETE", key).catch((error: unknown) => {
      if (!(error instanceof BlobNotFound)) throw error;
    });
  }

  async list(prefix: string): Promise<string[]> {
    const own = this.#settings.prefix;
    const keys: string[] = [];
    const query: Record<string, string> = { "list-type": "2", prefix: own + prefix };
    for (;;) {
      const page = await (await this.#ask("GET", undefined, { query })).text();
      keys.push(...elements(page, "Contents").map((entry) => textOf(entry, "Key").slice(own.length)));
      const next = textOf(page, "NextContinuationToken");
      if (next === "") return keys.toSorted();
      query["continuation-token"] = next;
    }
  }

  async dropUnfinished(before: Date): Promise<void> {
    const own = this.#settings.prefix;
    const query: Record<string, string> = { uploads: "", prefix: own };
    for (;;) {
      const page = await (await this.#ask("GET", undefined, { query })).text();
      for (const entry of elements(page, "Upload")) {
        if (new Date(textOf(entry, "Initiated")) >= before) continue;
        const of = textOf(entry, "Key").slice(own.length);
        await this.#ask("DELETE", of, { query: { uploadId: textOf(entry, "UploadId") } });
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
    const answer = await (await this.#ask("POST", key, { query: { uploads: "" } })).text();
    return new Upload(textOf(answer, "UploadId"), (method, request) => this.#ask(method, key, request));
  }

  /** Answers 2xx; everything else is thrown. What may succeed a moment later is asked again. */
  async #ask(method: string, key: string | undefined, request: Request = {}): Promise<Response> {
    const url = this.#url(key, request.query ?? {});
    for (let attempt = 1; ; attempt++) {
      try {
        return await this.#askOnce(method, url, key, request);
      } catch (error) {
        if (attempt === tries || !asksAgain(error)) throw error;
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
    const timer = setTimeout(() => late.abort(new Error("the object store does not answer")), answerMs);
    try {
      // The very bytes are signed, so that a store refuses what changed on its way.
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
        throw new BlobNotFound(`There is no blob ${key}.`);
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

/** One that goes up in parts: one is under way while the caller fills the next. */
class Upload {
  readonly #id: string;
  readonly #ask: (method: string, request: Request) => Promise<Response>;
  readonly #tags: string[] = [];
  #sending: Promise<void> | undefined;

  constructor(id: string, ask: (method: string, request: Request) => Promise<Response>) {
    if (id === "") throw new S3Error(200, "", "the store began an upload without a name");
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
    // Whoever waits for it hears of it; until then it is nobody's.
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
    // A store that needs long says 200 first, and how it ended afterwards.
    if (/<Error[\s>]/.test(said)) throw new S3Error(200, textOf(said, "Code"), textOf(said, "Message"));
  }

  /** What stays for want of an answer goes with the next `dropUnfinished`. */
  async abort(): Promise<void> {
    await this.#sending?.catch(() => {});
    await this.#ask("DELETE", { query: { uploadId: this.#id } }).catch(() => {});
  }
}

/** Pieces of any size to parts of one: at least one, and the last is told as such. */
async function* parts(content: AsyncIterable<Buffer>): AsyncGenerator<{ part: Buffer; isLast: boolean }> {
  let number = 1;
  let part = Buffer.allocUnsafe(partBytes(number));
  let filled = 0;
  for await (const piece of content) {
    for (let at = 0; at < piece.length;) {
      // Not before there is more: the last part must be known as such.
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
