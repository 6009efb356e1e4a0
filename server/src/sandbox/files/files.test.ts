import { expect, test } from "vitest";
import { testDatabase } from "../../../test/harness.ts";
import { createSandbox } from "../sandboxes/lifecycle/create.ts";
import { runBuffered } from "../exec/exec.ts";
import { Exec } from "../exec/schema.ts";
import { createInput, personWithTier, testHost } from "../testing/sandbox-app.ts";
import { makeDirectory, move, read, remove, stat, writeBatch, writeFile } from "./files.ts";
import { batchMaxBytes, fileMaxBytes } from "./limits.ts";
import {
  Batch,
  BatchResult,
  FileRead,
  FileStat,
  FileWrite,
  FileWritten,
  MakeDirectory,
  Move,
} from "./schema.ts";

const { db } = await testDatabase();
const { app, driver } = await testHost(db);
const { actor } = await personWithTier(db, "enterprise");
const { id, machine_id: machine } = await createSandbox(app, actor, createInput());

const base64 = (text: string): string => Buffer.from(text).toString("base64");
const write = (path: string, content: string) =>
  writeFile(app, actor, id, FileWrite.parse({ path, content: base64(content) }));

test("returns responses that match the wire's schema", async () => {
  const answers = [
    [FileWritten, await write("/workspace/a", "one")],
    [FileRead, await read(app, actor, id, "/workspace/a")],
    [FileRead, await read(app, actor, id, "/workspace")],
    [FileStat, await stat(app, actor, id, "/workspace/a")],
    [FileStat, await stat(app, actor, id, "/workspace/nothing")],
    [FileStat, await makeDirectory(app, actor, id, MakeDirectory.parse({ path: "/workspace/d/e" }))],
    [BatchResult, await writeBatch(app, actor, id, Batch.parse({ files: [{ path: "b", content: "" }] }))],
  ] as const;
  for (const [schema, answer] of answers) expect(schema.safeParse(answer).error).toBeUndefined();
});

test("resolves a relative path below /workspace in every call", async () => {
  await write("here/file", "x");
  expect(await read(app, actor, id, "here/file")).toMatchObject({ path: "/workspace/here/file", size: 1 });
  expect(await stat(app, actor, id, "here")).toMatchObject({ path: "/workspace/here", is_dir: true });
  const to = Move.parse({ from: "here/file", to: "here/moved" });
  expect(await move(app, actor, id, to)).toEqual({
    from: "/workspace/here/file",
    to: "/workspace/here/moved",
  });
  await remove(app, actor, id, "here/moved");
  expect(await stat(app, actor, id, "here/moved")).toMatchObject({ exists: false });
});

test("rejects content above the cap, or invalid base64, before it reaches the machine", async () => {
  const large = { path: "large", content: Buffer.alloc(fileMaxBytes + 1).toString("base64"), mode: 0o644 };
  await expect(writeFile(app, actor, id, large)).rejects.toMatchObject({
    code: "payload_too_large",
    status: 413,
  });
  const bad = { path: "bad", content: "%%%", mode: 0o644 };
  await expect(writeFile(app, actor, id, bad)).rejects.toMatchObject({
    code: "invalid_request",
    status: 400,
  });
  for (const path of ["large", "bad"]) {
    expect(await stat(app, actor, id, path)).toMatchObject({ exists: false });
  }
});

test("lists a directory page by page in byte order of names, with owner and link target", async () => {
  for (const name of ["b", "a", "é", "B", "c"]) await write(`/workspace/pages/${name}`, name);
  await runBuffered(app, actor, id, Exec.parse({ command: "ln -s ../none pages/d; ln -s a pages/e" }));
  const names: string[] = [];
  let cursor: string | undefined;
  do {
    const page = await read(app, actor, id, "pages", { limit: 3, cursor });
    if (!page.is_dir) throw new Error("not a directory");
    expect(FileRead.safeParse(page).error).toBeUndefined();
    names.push(
      ...page.entries.map(({ name, link_target: target }) => (target ? `${name} → ${target}` : name)),
    );
    cursor = page.next_cursor ?? undefined;
  } while (cursor !== undefined);
  expect(names).toEqual(["B", "a", "b", "c", "d → ../none", "e → a", "é"]);
  const owner = { uid: process.getuid?.(), gid: process.getgid?.() };
  expect(await stat(app, actor, id, "pages/a")).toMatchObject({ ...owner, link_target: null });
  expect(await stat(app, actor, id, "pages/e")).toMatchObject({ exists: true, size: 1, link_target: "a" });
  expect(await stat(app, actor, id, "pages/d")).toMatchObject({ exists: true, link_target: "../none" });
  const first = await read(app, actor, id, "pages", { limit: 1 });
  const foreign = first.is_dir ? (first.next_cursor ?? "") : "";
  await expect(read(app, actor, id, "/workspace", { cursor: foreign })).rejects.toMatchObject({
    code: "invalid_request",
  });
});

test("deletes a directory only when recursive is set", async () => {
  await write("/workspace/tree/below/file", "x");
  await expect(remove(app, actor, id, "tree")).rejects.toMatchObject({ code: "is_directory" });
  await remove(app, actor, id, "tree", { recursive: true });
  expect(await stat(app, actor, id, "tree")).toMatchObject({ exists: false, uid: null, link_target: null });
  await expect(remove(app, actor, id, "/workspace", { recursive: true })).rejects.toMatchObject({
    code: "not_permitted",
  });
});

test("writes and reads plain text, and falls back to base64 for bytes that are not UTF-8", async () => {
  await writeFile(app, actor, id, FileWrite.parse({ path: "text", content_text: "grüße\n" }));
  expect(await read(app, actor, id, "text", { text: true })).toEqual({
    path: "/workspace/text",
    is_dir: false,
    content_text: "grüße\n",
    size: 8,
  });
  expect(await read(app, actor, id, "text")).toMatchObject({ content: base64("grüße\n") });
  await writeFile(app, actor, id, FileWrite.parse({ path: "bytes", content: "/w==" }));
  expect(await read(app, actor, id, "bytes", { text: true })).toMatchObject({ content: "/w==" });
  for (const body of [{}, { content: "", content_text: "" }, { content_text: "\ud800" }]) {
    expect(FileWrite.safeParse({ path: "x", ...body }).success).toBe(false);
  }
  const large = { path: "large", content_text: "x".repeat(fileMaxBytes + 1) };
  await expect(writeFile(app, actor, id, FileWrite.parse(large))).rejects.toMatchObject({
    code: "payload_too_large",
  });
});

test("accepts a batch of three files of 16 MiB, and refuses one byte more before it reaches the machine", async () => {
  const full = Buffer.alloc(fileMaxBytes).toString("base64");
  const files = ["x", "y", "z"].map((name) => ({ path: `full/${name}`, content: full, mode: 0o644 }));
  expect(fileMaxBytes * 3).toBe(batchMaxBytes);
  const { results } = await writeBatch(app, actor, id, { files });
  expect(results.map(({ bytes_written: bytes }) => bytes)).toEqual([
    fileMaxBytes,
    fileMaxBytes,
    fileMaxBytes,
  ]);
  const more = { path: "full/more", content: base64("1"), mode: 0o644 };
  await expect(writeBatch(app, actor, id, { files: [more, ...files] })).rejects.toMatchObject({
    code: "payload_too_large",
    status: 413,
  });
  expect(await stat(app, actor, id, "full/more")).toMatchObject({ exists: false });
});

test("fails a batch as a whole when its machine ends, with the sandbox's own reason", async () => {
  const files = [{ path: "a", content: "" }];
  driver.end(machine ?? "", "out_of_memory");
  await expect(writeBatch(app, actor, id, Batch.parse({ files }))).rejects.toMatchObject({
    code: "sandbox_terminated",
    status: 409,
  });
});
