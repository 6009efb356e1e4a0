/** Pre-signed URLs in use: with curl, against the files host, on the real runtime. */
import { createHash, randomBytes } from "node:crypto";
import { createReadStream } from "node:fs";
import { mkdtemp, readFile, rm, stat, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run } from "@kontor/runtime/exec.ts";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { eventually, expectRefusal } from "./support/answers.ts";
import { createSandbox, exec, getSandbox, output, server, sharedSandbox } from "./support/fixtures.ts";

const box = sharedSandbox({ size: "medium" });
const MiB = 1024 ** 2;

/** The tests transfer gigabytes, and the host may be busy. */
vi.setConfig({ testTimeout: 240_000 });

let directory = "";
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), "kontor-transfers-"));
});
afterAll(() => rm(directory, { recursive: true, force: true }));

async function sign(id: string, kind: "upload" | "download", path: string): Promise<string> {
  const signed = await server.api("POST", `/v1/sandboxes/${id}/files/presign-${kind}`, { body: { path } });
  expect(signed.status, JSON.stringify(signed.body)).toBe(200);
  return signed.body.url;
}

interface Transfer {
  status: number;
  /** JSON body of a refusal, or of an upload. */
  json: Record<string, unknown>;
}

let answers = 0;

function curl(url: string, ...options: string[]): Promise<Transfer> {
  return curlInto(join(directory, `answer-${(answers += 1)}`), url, options);
}

/** Runs curl for a signed URL on this host: with the same name, but on the plain listener. */
function curlInto(file: string, url: string, options: string[]): Promise<Transfer> {
  const { hostname, pathname, search } = new URL(url);
  const plain = ["--header", `Host: ${hostname}`, server.baseUrl + pathname + search];
  return callInto(file, [...options, "--header", "Expect:", ...plain]);
}

async function callInto(file: string, options: string[]): Promise<Transfer> {
  const told = ["--silent", "--show-error", "--output", file, "--write-out", "%{http_code}"];
  const argv = ["curl", ...told, ...options];
  // Exit codes 52, 55 and 56 of curl: the connection ended, for example because the server was killed.
  const { stdout } = await run(argv, { timeoutMs: 180_000, okCodes: [0, 52, 55, 56] });
  const text = await readFile(file, "utf8").catch(() => "");
  return { status: Number(stdout), json: text.startsWith('{"') ? JSON.parse(text) : {} };
}

const upload = (url: string, file: string, ...options: string[]) =>
  curl(url, "--upload-file", file, ...options);

async function get(url: string, file: string, ...options: string[]): Promise<number> {
  return (await curlInto(file, url, options)).status;
}

async function sha256(file: string): Promise<string> {
  const hash = createHash("sha256");
  for await (const piece of createReadStream(file)) hash.update(piece as Buffer);
  return hash.digest("hex");
}

async function fileOf(size: number, name: string): Promise<string> {
  const file = join(directory, name);
  await writeFile(file, randomBytes(size));
  return file;
}

test("uploads a file with curl at mode 0644, and downloads the file unchanged", async () => {
  const file = await fileOf(64 * MiB, "in");
  const written = await upload(await sign(box.id, "upload", "data/in"), file);
  expect([written.status, written.json]).toEqual([
    200,
    { path: "/workspace/data/in", bytes_written: 64 * MiB },
  ]);
  expect(await output(box.id, "stat -c '%a %s' data/in && ls -A data")).toBe(`644 ${64 * MiB}\nin`);
  expect(await output(box.id, "sha256sum < data/in")).toContain(await sha256(file));
  const out = join(directory, "out");
  expect(await get(await sign(box.id, "download", "data/in"), out)).toBe(200);
  expect(await sha256(out)).toBe(await sha256(file));
});

test("a presigned URL works over TLS with the installation's certificate", async () => {
  const file = await fileOf(4 * MiB, "tls");
  // The host's resolver may not resolve names below localhost, so curl connects to 127.0.0.1 with the URL's own port.
  const tls = ["--cacert", join(server.dataDir, "ca.crt"), "--connect-to", "::127.0.0.1:"];
  const use = (url: string, ...options: string[]) =>
    callInto(join(directory, "tls-answer"), [...tls, ...options, url]);
  expect((await use(await sign(box.id, "upload", "tls"), "--upload-file", file)).status).toBe(200);
  expect((await use(await sign(box.id, "download", "tls"))).status).toBe(200);
  expect(await sha256(join(directory, "tls-answer"))).toBe(await sha256(file));
});

test("resumes an interrupted download of a presigned URL", async () => {
  const file = await fileOf(8 * MiB, "long");
  await upload(await sign(box.id, "upload", "long"), file);
  const part = join(directory, "part");
  const url = await sign(box.id, "download", "long");
  expect(await get(url, part, "--range", `0-${3 * MiB}`)).toBe(206);
  expect((await stat(part)).size).toBe(3 * MiB + 1);
  expect(await get(url, part, "--continue-at", "-")).toBe(206);
  expect(await sha256(part)).toBe(await sha256(file));
});

test("accepts an upload of 512 MiB, and refuses a larger upload or an upload without a size", async () => {
  const { id } = await createSandbox({ size: "medium" });
  const url = await sign(id, "upload", "large");
  const file = join(directory, "large");
  await writeFile(file, "");
  await truncate(file, 512 * MiB + 1);
  const refused = await upload(url, file);
  expect([refused.status, refused.json["code"]]).toEqual([413, "payload_too_large"]);
  await truncate(file, 512 * MiB);
  expect((await upload(url, file)).json).toEqual({ path: "/workspace/large", bytes_written: 512 * MiB });
  const chunked = await upload(url, file, "--header", "Transfer-Encoding: chunked");
  expect([chunked.status, chunked.json["code"]]).toEqual([411, "length_required"]);
  expect(await output(id, "stat -c %s large && ls -A")).toBe(`${512 * MiB}\nlarge`);
});

test("a presigned URL serves only its own method, path and sandbox, and only unchanged", async () => {
  const { id: other } = await createSandbox();
  await exec(box.id, "echo mine > mine; echo secret > secret");
  const url = await sign(box.id, "download", "mine");
  const file = await fileOf(10, "small");
  const changeUrl = (change: (copy: URL) => void): string => {
    const copy = new URL(url);
    change(copy);
    return copy.href;
  };
  const refusals = [
    await upload(url, file),
    await curl(changeUrl((copy) => copy.searchParams.set("path", "/workspace/secret"))),
    await curl(changeUrl((copy) => copy.searchParams.set("svc_exp", "4102444800"))),
    await curl(changeUrl((copy) => copy.searchParams.set("svc_sig", "A".repeat(43)))),
    await curl(changeUrl((copy) => (copy.hostname = copy.hostname.replace(box.id.slice(4), other.slice(4))))),
  ];
  for (const refusal of refusals) {
    expect([refusal.status, refusal.json["code"]]).toEqual([403, "signature_invalid"]);
  }
  expect((await curl(url, "--request", "DELETE")).status).toBe(405);
  expect(await output(box.id, "cat mine")).toBe("mine");
});

test("refuses an upload outside the writable directories, by path or through a later symlink", async () => {
  const refused = await server.api("POST", `/v1/sandboxes/${box.id}/files/presign-upload`, {
    body: { path: "/etc/passwd" },
  });
  expectRefusal(refused, 403, "not_permitted");
  const url = await sign(box.id, "upload", "/workspace/way/out");
  await exec(box.id, "ln -sfn /etc way");
  const file = await fileOf(2 * MiB, "two");
  const used = await upload(url, file);
  expect([used.status, used.json["code"]]).toEqual([403, "not_permitted"]);
  expect((await exec(box.id, "test -e /etc/out")).exit_code).toBe(1);
});

test("serves presigned URLs of a sandbox without a network", async () => {
  const { id } = await createSandbox({ network: "off" });
  const file = await fileOf(MiB, "off");
  expect((await upload(await sign(id, "upload", "/tmp/off"), file)).status).toBe(200);
  const back = join(directory, "back");
  expect(await get(await sign(id, "download", "/tmp/off"), back)).toBe(200);
  expect(await sha256(back)).toBe(await sha256(file));
});

test("ten users of a paused sandbox's URL wake it once and are served; without auto_resume they are refused", async () => {
  const { id } = await createSandbox({ auto_resume: true });
  await exec(id, "head -c 1000000 /dev/urandom > kept");
  const sum = (await output(id, "sha256sum < kept")).split(" ")[0];
  expect((await server.api("POST", `/v1/sandboxes/${id}/pause`)).status).toBe(200);
  const url = await sign(id, "download", "kept");
  expect((await curl(`${url}x`)).status).toBe(403);
  expect((await getSandbox(id)).status).toBe("paused");
  const sums = await Promise.all(
    Array.from({ length: 10 }, async (_, index) => {
      const file = join(directory, `user-${index}`);
      expect(await get(url, file)).toBe(200);
      return sha256(file);
    }),
  );
  expect(sums).toEqual(sums.map(() => sum));
  const events = await server.api("GET", `/v1/sandboxes/events?sandbox_id=${id}&event_type=sandbox.resumed`);
  expect(events.body.items).toHaveLength(1);

  const { id: asleep } = await createSandbox();
  await server.api("POST", `/v1/sandboxes/${asleep}/pause`);
  const refused = await upload(await sign(asleep, "upload", "x"), await fileOf(5 * MiB, "five"));
  expect([refused.status, refused.json["code"]]).toEqual([409, "sandbox_paused"]);
});

test("refuses to presign URLs of a deleted sandbox, and refuses the sandbox's earlier URLs", async () => {
  const { id } = await createSandbox();
  const url = await sign(id, "download", "x");
  await server.api("DELETE", `/v1/sandboxes/${id}`);
  const signed = await server.api("POST", `/v1/sandboxes/${id}/files/presign-download`, {
    body: { path: "x" },
  });
  expectRefusal(signed, 409, "sandbox_terminated");
  const used = await curl(url);
  expect([used.status, used.json["code"]]).toEqual([409, "sandbox_terminated"]);
});

test("reports a full disk to the uploading client, and leaves no partial file", async () => {
  const { id } = await createSandbox();
  await exec(id, "head -c 900M /dev/zero > fill", { timeout_seconds: 120 });
  const file = join(directory, "sparse");
  await writeFile(file, "");
  await truncate(file, 400 * MiB);
  const refused = await upload(await sign(id, "upload", "more"), file);
  expect([refused.status, refused.json["code"]]).toEqual([507, "disk_full"]);
  expect(await output(id, "ls -A")).toBe("fill");
});

test("completes eight concurrent uploads and downloads", async () => {
  const file = await fileOf(24 * MiB, "shared");
  const sum = await sha256(file);
  const sums = await Promise.all(
    Array.from({ length: 8 }, async (_, index) => {
      const [up, down] = [
        await sign(box.id, "upload", `many/${index}`),
        await sign(box.id, "download", `many/${index}`),
      ];
      expect((await upload(up, file)).status).toBe(200);
      const back = join(directory, `many-${index}`);
      expect(await get(down, back)).toBe(200);
      return sha256(back);
    }),
  );
  expect(sums).toEqual(sums.map(() => sum));
});

test("kill -9 during an upload leaves no partial file, and the same URL works after the restart", async () => {
  const { id } = await createSandbox();
  await exec(id, "mkdir up && echo old > up/file");
  const url = await sign(id, "upload", "up/file");
  const file = await fileOf(32 * MiB, "slow");
  const uploading = upload(url, file, "--limit-rate", "4M");
  await eventually(
    () => output(id, "ls -A up"),
    (names) => names.includes(".kontor-"),
  );
  await server.kill9();
  expect((await uploading).status).toBe(0);
  await server.start();
  await eventually(
    () => output(id, "ls -A up"),
    (names) => names === "file",
  );
  expect(await output(id, "cat up/file")).toBe("old");
  expect((await upload(url, file)).status).toBe(200);
  expect(await output(id, "sha256sum < up/file")).toContain(await sha256(file));
});
