import { expect, test } from "vitest";
import { testDatabase } from "../../../test/harness.ts";
import { createSandbox } from "../sandboxes/create.ts";
import { createInput, personWithTier, testHost } from "../testing/sandbox-app.ts";
import { makeDirectory, move, read, remove, stat, writeBatch, writeFile } from "./files.ts";
import { fileMaxBytes } from "./limits.ts";
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

test("every answer is in the wire's own schema", async () => {
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

test("a relative path is below /workspace in every call", async () => {
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

test("content past the cap, or that is no base64, never reaches the machine", async () => {
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

test("a batch whose machine ends fails as a whole, with the sandbox's own reason: no row could say that", async () => {
  const files = [{ path: "a", content: "" }];
  driver.end(machine ?? "", "out_of_memory");
  await expect(writeBatch(app, actor, id, Batch.parse({ files }))).rejects.toMatchObject({
    code: "sandbox_terminated",
    status: 409,
  });
});
