import { createHash, randomBytes } from "node:crypto";
import { expect, test } from "vitest";
import { base64, expectRefusal } from "./support/answers.ts";
import {
  createSandbox,
  exec,
  output,
  readFile,
  server,
  sharedSandbox,
  statFile,
  writeFile,
} from "./support/fixtures.ts";

const box = sharedSandbox();
const MiB = 1024 ** 2;

const files = (path = ""): string => `/v1/sandboxes/${box.id}/files${path}`;

function sha256(bytes: Uint8Array): string {
  return createHash("sha256").update(bytes).digest("hex");
}

test("returns a written file in the documented form, by its absolute path", async () => {
  const written = await writeFile(box.id, "/workspace/notes/one.txt", "hällo\n");
  expect([written.status, written.body]).toEqual([
    200,
    { path: "/workspace/notes/one.txt", bytes_written: 7 },
  ]);
  const read = await readFile(box.id, "/workspace/notes/one.txt");
  expect([read.status, read.body]).toEqual([
    200,
    { path: "/workspace/notes/one.txt", is_dir: false, content: base64("hällo\n"), size: 7 },
  ]);
  expect(await output(box.id, "cat notes/one.txt")).toBe("hällo");
});

test("resolves a relative path under /workspace", async () => {
  expect((await writeFile(box.id, "deep/er/file", "x")).body.path).toBe("/workspace/deep/er/file");
  expect((await readFile(box.id, "deep/er/file")).body).toMatchObject({
    path: "/workspace/deep/er/file",
    size: 1,
  });
});

test("a file's mode is a JSON integer, defaults to 0644, and changes when the file is overwritten", async () => {
  await writeFile(box.id, "/tmp/plain", "x");
  await writeFile(box.id, "/tmp/script", "#!/bin/sh\necho ran\n", { mode: 0o755 });
  expect(await output(box.id, "stat -c %a /tmp/plain /tmp/script && /tmp/script")).toBe("644\n755\nran");
  await writeFile(box.id, "/tmp/script", "#!/bin/sh\n", { mode: 0o600 });
  expect((await statFile(box.id, "/tmp/script")).body.mode).toBe(0o600);
  expectRefusal(await writeFile(box.id, "/tmp/x", "x", { mode: 0o10000 }), 400, "invalid_request");
  expectRefusal(await writeFile(box.id, "/tmp/x", "x", { mode: "0644" }), 400, "invalid_request");
});

test("writes and reads 16 MiB of random bytes unchanged", async () => {
  const bytes = randomBytes(16 * MiB);
  expect((await writeFile(box.id, "/tmp/random", bytes)).body.bytes_written).toBe(16 * MiB);
  expect(await output(box.id, "sha256sum < /tmp/random")).toContain(sha256(bytes));
  const read = await readFile(box.id, "/tmp/random");
  expect(read.body.size).toBe(16 * MiB);
  expect(sha256(Buffer.from(read.body.content, "base64"))).toBe(sha256(bytes));
});

test("refuses to write or read more than 16 MiB", async () => {
  expectRefusal(
    await writeFile(box.id, "/tmp/too-large", Buffer.alloc(16 * MiB + 1)),
    413,
    "payload_too_large",
  );
  expect((await statFile(box.id, "/tmp/too-large")).body.exists).toBe(false);
  await exec(box.id, "head -c $((16 * 1024 * 1024 + 1)) /dev/zero > /tmp/too-large");
  expectRefusal(await readFile(box.id, "/tmp/too-large"), 413, "payload_too_large");
});

test("lists a directory with name, kind, size, mode and time of each entry", async () => {
  await exec(
    box.id,
    "mkdir -p /tmp/dir/sub && cd /tmp/dir && printf 12345 > f && chmod 640 f && ln -s f link",
  );
  const read = await readFile(box.id, "/tmp/dir");
  expect(read.body).toMatchObject({ path: "/tmp/dir", is_dir: true });
  const entries = new Map(read.body.entries.map((entry: { name: string }) => [entry.name, entry]));
  expect(new Set(entries.keys())).toEqual(new Set(["f", "link", "sub"]));
  expect(entries.get("f")).toEqual({
    name: "f",
    is_dir: false,
    size: 5,
    mode: 0o640,
    modified_at: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$/),
    uid: 0,
    gid: 0,
    link_target: null,
  });
  expect(entries.get("link")).toMatchObject({ size: 5, link_target: "f" });
  expect(entries.get("sub")).toMatchObject({ is_dir: true });
});

test("stat returns exists=false for a missing path, and never 404", async () => {
  const missing = await statFile(box.id, "/tmp/nothing/here");
  expect([missing.status, missing.body]).toEqual([
    200,
    {
      path: "/tmp/nothing/here",
      exists: false,
      is_dir: null,
      size: null,
      mode: null,
      modified_at: null,
      uid: null,
      gid: null,
      link_target: null,
    },
  ]);
  expect((await statFile(box.id, "/usr/bin")).body).toMatchObject({ exists: true, is_dir: true });
  expect((await statFile(box.id, "/etc/passwd")).body).toMatchObject({
    exists: true,
    is_dir: false,
    mode: 0o644,
  });
});

test("delete removes a file with 204, and refuses a directory and a missing path", async () => {
  await writeFile(box.id, "/tmp/doomed", "x");
  const gone = await server.api("DELETE", files("?path=/tmp/doomed"));
  expect([gone.status, gone.body]).toEqual([204, undefined]);
  expectRefusal(await server.api("DELETE", files("?path=/tmp/doomed")), 404, "file_not_found");
  await exec(box.id, "mkdir /tmp/kept");
  expectRefusal(await server.api("DELETE", files("?path=/tmp/kept")), 400, "is_directory");
  expect((await statFile(box.id, "/tmp/kept")).body.exists).toBe(true);
});

test("mkdir creates parent directories by default, and refuses a path below a file", async () => {
  const make = (body: object) => server.api("POST", files("/mkdir"), { body });
  const made = await make({ path: "/workspace/a/b/c", mode: 0o700 });
  expect([made.status, made.body]).toEqual([
    201,
    {
      path: "/workspace/a/b/c",
      exists: true,
      is_dir: true,
      size: expect.any(Number),
      mode: 0o700,
      modified_at: expect.any(String),
      uid: 0,
      gid: 0,
      link_target: null,
    },
  ]);
  expectRefusal(await make({ path: "/workspace/x/y", parents: false }), 404, "file_not_found");
  await writeFile(box.id, "/workspace/file", "x");
  expectRefusal(await make({ path: "/workspace/file/below" }), 400, "not_directory");
});

test("move renames files and directories, and replaces an existing target only on request", async () => {
  const move = (body: object) => server.api("POST", files("/move"), { body });
  await writeFile(box.id, "/workspace/m/from", "1");
  const moved = await move({ from: "/workspace/m/from", to: "/tmp/m-to" });
  expect([moved.status, moved.body]).toEqual([200, { from: "/workspace/m/from", to: "/tmp/m-to" }]);
  expect((await statFile(box.id, "/workspace/m/from")).body.exists).toBe(false);
  await writeFile(box.id, "/workspace/other", "2");
  expectRefusal(await move({ from: "/workspace/other", to: "/tmp/m-to" }), 409, "file_exists");
  expect((await move({ from: "/workspace/other", to: "/tmp/m-to", overwrite: true })).status).toBe(200);
  expect(await output(box.id, "cat /tmp/m-to")).toBe("2");
  expect((await move({ from: "/workspace/m", to: "/workspace/n" })).status).toBe(200);
  expectRefusal(await move({ from: "/workspace/not-there", to: "/tmp/z" }), 404, "file_not_found");
  expectRefusal(await move({ from: "/tmp/m-to", to: "/etc/m-to" }), 403, "not_permitted");
  expectRefusal(await move({ from: "/etc/passwd", to: "/tmp/stolen" }), 403, "not_permitted");
});

test("a batch writes files in order; a failed file reports its error and does not stop the others", async () => {
  const batch = await server.api("POST", files("/batch"), {
    body: {
      files: [
        { path: "/workspace/batch/1", content: base64("one") },
        { path: "/etc/batch", content: base64("no") },
        { path: "/workspace/batch/1", content: base64("two"), mode: 0o755 },
        { path: "/workspace/batch", content: base64("a directory is there") },
        { path: "bad\0name", content: base64("no") },
        { path: "/workspace/not-base64", content: "%%%" },
        { path: "relative", content: "" },
      ],
    },
  });
  expect(batch.status).toBe(200);
  const refusal = (code: string) => ({ bytes_written: null, error: { code, message: expect.any(String) } });
  expect(batch.body.results).toEqual([
    { path: "/workspace/batch/1", bytes_written: 3, error: null },
    { path: "/etc/batch", ...refusal("not_permitted") },
    { path: "/workspace/batch/1", bytes_written: 3, error: null },
    { path: "/workspace/batch", ...refusal("is_directory") },
    { path: "bad\0name", ...refusal("invalid_request") },
    { path: "/workspace/not-base64", ...refusal("invalid_request") },
    { path: "relative", bytes_written: 0, error: null },
  ]);
  expect(await output(box.id, "cat batch/1; stat -c ' %a' batch/1 relative")).toBe("two 755\n 644");
});

test("accepts a batch of 48 MiB with files of 16 MiB each", async () => {
  const content = base64(Buffer.alloc(16 * MiB));
  const full = ["a", "b", "c"].map((name) => ({ path: `/tmp/full-${name}`, content }));
  const batch = await server.api("POST", files("/batch"), { body: { files: full } });
  expect(batch.status).toBe(200);
  expect(batch.body.results.map(({ error }: { error: unknown }) => error)).toEqual([null, null, null]);
  expect(await output(box.id, "cat /tmp/full-* | wc -c; rm /tmp/full-*")).toBe(String(48 * MiB));
  const more = [...full, { path: "/tmp/full-d", content: base64("1") }];
  expectRefusal(
    await server.api("POST", files("/batch"), { body: { files: more } }),
    413,
    "payload_too_large",
  );
  expect(await output(box.id, "ls /tmp | grep -c full- || true")).toBe("0");
});

test("refuses a whole batch of more than 64 files or 48 MiB", async () => {
  const many = Array.from({ length: 65 }, (_, n) => ({ path: `/tmp/many-${n}`, content: "" }));
  expectRefusal(await server.api("POST", files("/batch"), { body: { files: many } }), 400, "invalid_request");
  const content = base64(Buffer.alloc(12 * MiB));
  const large = Array.from({ length: 6 }, (_, n) => ({ path: `/tmp/large-${n}`, content }));
  // A client that is still writing must receive the refusal instead of a broken connection.
  for (let n = 0; n < 3; n += 1) {
    const refused = await server.api("POST", files("/batch"), { body: { files: large } });
    expectRefusal(refused, 413, "payload_too_large");
  }
  expect(await output(box.id, "ls /tmp | grep -c -e many- -e large- || true")).toBe("0");
});

test("refuses paths outside the writable roots with not_permitted, even through .. or symlinks", async () => {
  await exec(
    box.id,
    "ln -sfn /etc /workspace/out; ln -sfn /etc/hostname /workspace/file-out; ln -sfn / /tmp/root",
  );
  for (const path of [
    "/etc/x",
    "/root/x",
    "/x",
    "/workspace",
    "/workspace/../etc/x",
    "../etc/x",
    "/workspace/out/x",
    "/workspace/file-out",
    "/tmp/root/usr/x",
    "/workspacex/y",
    "/persist/x",
    "/proc/sys/kernel/hostname",
    "/dev/null",
  ]) {
    const reply = await writeFile(box.id, path, "x");
    expect([path, reply.status, reply.body.code]).toEqual([path, 403, "not_permitted"]);
  }
  expectRefusal(await server.api("DELETE", files("?path=/etc/passwd")), 403, "not_permitted");
  expectRefusal(await server.api("DELETE", files("?path=/workspace/out/passwd")), 403, "not_permitted");
  expectRefusal(
    await server.api("POST", files("/mkdir"), { body: { path: "/opt/x" } }),
    403,
    "not_permitted",
  );
  // A path that leaves a root and returns to it is allowed, and so is a symlink to a target inside a root.
  expect((await writeFile(box.id, "/workspace/../tmp/back", "x")).status).toBe(200);
  await exec(box.id, "mkdir -p /tmp/inner && ln -sfn /tmp/inner /workspace/in");
  expect((await writeFile(box.id, "/workspace/in/side", "x")).status).toBe(200);
  expect(await output(box.id, "cat /tmp/inner/side")).toBe("x");
});

test("changes files below `current -> releases/v2` where `releases` is a symlink too", async () => {
  const release = "/tmp/persist/releases/v2";
  await exec(
    box.id,
    `mkdir -p ${release} /workspace/site && echo original > ${release}/app.conf && cd /workspace/site &&
     ln -sfn /tmp/persist/releases releases && ln -sfn releases/v2 current`,
  );
  const current = "/workspace/site/current";
  expect((await writeFile(box.id, `${current}/app.conf`, "new")).status).toBe(200);
  expect((await readFile(box.id, `${current}/app.conf`)).body.content).toBe(base64("new"));
  const post = (path: string, body: object) => server.api("POST", files(path), { body });
  const batch = [{ path: `${current}/batch`, content: base64("batch") }];
  expect((await post("/batch", { files: batch })).body.results[0].error).toBe(null);
  expect((await post("/mkdir", { path: `${current}/logs` })).status).toBe(201);
  expect((await post("/move", { from: `${current}/batch`, to: `${current}/logs/batch` })).status).toBe(200);
  const removed = await server.api("DELETE", files(`?path=${encodeURIComponent(`${current}/app.conf`)}`));
  expect(removed.status).toBe(204);
  expect(await output(box.id, "cd /tmp/persist && find . -type f -o -type d | sort")).toBe(
    [".", "./releases", "./releases/v2", "./releases/v2/logs", "./releases/v2/logs/batch"].join("\n"),
  );
});

test("deleting a symlink removes the symlink, and never its target", async () => {
  await exec(box.id, "ln -sfn /etc/passwd /workspace/link-out");
  expect((await server.api("DELETE", files("?path=/workspace/link-out"))).status).toBe(204);
  expect((await statFile(box.id, "/etc/passwd")).body.exists).toBe(true);
});

test("accepts file names of 255 bytes in every call, and refuses longer names", async () => {
  const name = `${"ä".repeat(127)}x`;
  expect(Buffer.byteLength(name)).toBe(255);
  expect((await writeFile(box.id, `/tmp/long/${name}`, "long")).status).toBe(200);
  expect((await readFile(box.id, `/tmp/long/${name}`)).body.content).toBe(base64("long"));
  expect((await readFile(box.id, "/tmp/long")).body.entries[0].name).toBe(name);
  expectRefusal(await writeFile(box.id, `/tmp/long/${name}x`, "x"), 400, "invalid_path");
  expect((await server.api("DELETE", files(`?path=${encodeURIComponent(`/tmp/long/${name}`)}`))).status).toBe(
    204,
  );
});

test("returns unusual file names exactly as they were written", async () => {
  for (const name of ["with space", "quote'\"", "new\nline", "%2F", "-rf", "*", "‮rtl", "🚀", "\\back"]) {
    expect((await writeFile(box.id, `/tmp/odd/${name}`, name)).status, name).toBe(200);
    expect((await readFile(box.id, `/tmp/odd/${name}`)).body.content, name).toBe(base64(name));
  }
  expect((await readFile(box.id, "/tmp/odd")).body.entries).toHaveLength(9);
});

test("refuses NUL, an empty path and a long path, and names the field", async () => {
  for (const path of ["/tmp/a\0b", "", `/tmp/${"a/".repeat(2100)}`]) {
    const reply = await writeFile(box.id, path, "x");
    expectRefusal(reply, 400, "invalid_request");
    expect(reply.body.detail).toContain("path");
    expectRefusal(await readFile(box.id, path), 400, "invalid_request");
  }
});

test("neither reads nor replaces a FIFO, a device or a socket, and does not block", async () => {
  await exec(box.id, "mkfifo /tmp/fifo; ln -sfn /dev/zero /tmp/zero");
  expectRefusal(await readFile(box.id, "/tmp/fifo"), 403, "not_permitted");
  expectRefusal(await readFile(box.id, "/tmp/zero"), 403, "not_permitted");
  expectRefusal(await readFile(box.id, "/dev/zero"), 403, "not_permitted");
  expectRefusal(await writeFile(box.id, "/tmp/fifo", "x"), 403, "not_permitted");
});

test("explains why a missing path, a path below a file, or a write to a directory fails", async () => {
  expectRefusal(await readFile(box.id, "/tmp/nothing"), 404, "file_not_found");
  await writeFile(box.id, "/tmp/a-file", "x");
  expectRefusal(await readFile(box.id, "/tmp/a-file/below"), 400, "not_directory");
  expect((await readFile(box.id, "/tmp/")).body.is_dir).toBe(true);
  expectRefusal(await writeFile(box.id, "/tmp/inner", "x"), 400, "is_directory");
});

test("reads a file outside the writable roots", async () => {
  expect(
    Buffer.from((await readFile(box.id, "/etc/os-release")).body.content, "base64").toString(),
  ).toContain("debian");
});

test("reports a full disk to commands and file calls, and writes again after a deletion", async () => {
  const full = await createSandbox();
  const dd = await exec(full.id, "dd if=/dev/zero of=/workspace/fill bs=1M", { timeout_seconds: 120 });
  expect(dd.exit_code).toBe(1);
  expect(dd.stderr).toContain("No space left on device");
  const refused = await server.api("POST", `/v1/sandboxes/${full.id}/files`, {
    body: { path: "/workspace/more", content: base64(Buffer.alloc(4 * MiB)) },
  });
  expectRefusal(refused, 507, "disk_full");
  const left = await output(full.id, "ls -A /workspace");
  expect(left).toBe("fill");
  await exec(full.id, "rm /workspace/fill");
  expect((await writeFile(full.id, "/workspace/more", "room")).status).toBe(200);
});
