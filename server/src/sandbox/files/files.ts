/**
 * Files of a running sandbox, through its guest program, because the host must not read a machine's disk. A write stays
 * under the writable roots, also through symlinks, and appears completely or not at all. This server keeps no file
 * after it has sent the response.
 */
import { isUtf8 } from "node:buffer";
import { posix } from "node:path";
import type { FileStat as GuestStat } from "#machines/host/guest.ts";
import type { z } from "zod";
import type { Actor } from "#accounts/actor.ts";
import { DomainError } from "#lib/errors.ts";
import { fileTooLarge, withTranslatedErrors } from "#machines/errors.ts";
import { inside, type InsideNeeds } from "../sandboxes/sandboxes.ts";
import { openCursor, sealCursor } from "../cursor.ts";
import { decode, sizeOfDecoded } from "./base64.ts";
import { batchMaxBytes, fileMaxBytes, listMaxEntries, writableRoots } from "./limits.ts";
import {
  type Batch,
  type BatchResult,
  type DirectoryEntry,
  type FileRead,
  type FileReading,
  type FileStat,
  type FileWrite,
  type FileWritten,
  type MakeDirectory,
  type Move,
  Path,
} from "./schema.ts";

type Needs = InsideNeeds;

export async function writeFile(
  app: Needs,
  actor: Actor,
  id: string,
  input: z.output<typeof FileWrite>,
): Promise<z.output<typeof FileWritten>> {
  const content =
    input.content_text === undefined
      ? decodeWithin(input.content ?? "", "content")
      : requireFit(Buffer.from(input.content_text), "content_text");
  const path = absolute(input.path);
  const { sizeBytes } = await inside(app, actor, id, (guest, row) =>
    guest.writeFile(path, content, { mode: input.mode, roots: writableRoots(row) }),
  );
  return { path, bytes_written: sizeBytes };
}

/** Writes files in order. A failed file has an error in its own row, and the others continue. */
export async function writeBatch(
  app: Needs,
  actor: Actor,
  id: string,
  { files }: Batch,
): Promise<BatchResult> {
  const total = files.reduce((sum, { content }) => sum + sizeOfDecoded(content), 0);
  if (total > batchMaxBytes) {
    throw fileTooLarge(
      `files: ${total} bytes of content exceed the maximum of ${batchMaxBytes} in one call; send several calls.`,
    );
  }
  return inside(app, actor, id, async (guest, row) => {
    const roots = writableRoots(row);
    const results: BatchResult["results"] = [];
    for (const { path, content, mode } of files) {
      try {
        const to = absolute(Path.parse(path));
        const bytes = decodeWithin(content, "content");
        const { sizeBytes } = await withTranslatedErrors(() => guest.writeFile(to, bytes, { mode, roots }));
        results.push({ path, bytes_written: sizeBytes, error: null });
      } catch (error) {
        results.push({ path, bytes_written: null, error: rowError(error) });
      }
    }
    return { results };
  });
}

export async function read(
  app: Needs,
  actor: Actor,
  id: string,
  path: string,
  { text = false, limit = listMaxEntries, cursor }: FileReading = {},
): Promise<FileRead> {
  const at = absolute(path);
  const place = `files:${id}:${at}`;
  const after =
    cursor === undefined ? undefined : openCursor<{ name: string }>(app, actor, place, cursor).name;
  return inside(app, actor, id, async (guest) => {
    const stat = await guest.stat(at);
    if (stat?.isDir) {
      const found = await guest.list(at, { limit: limit + 1, after });
      const entries = found.slice(0, limit);
      const next = found.length > entries.length ? nextName(entries) : undefined;
      return {
        path: at,
        is_dir: true,
        entries: entries.map((entry) => ({ name: entry.name, ...toEntry(entry) })),
        next_cursor: next === undefined ? null : sealCursor(app, actor, place, { name: next }),
      };
    }
    const { content } = await guest.readFile(at, { maxBytes: fileMaxBytes });
    const bytes = Buffer.concat(await Array.fromAsync(content as AsyncIterable<Buffer>));
    const size = bytes.length;
    return text && isUtf8(bytes)
      ? { path: at, is_dir: false, content_text: bytes.toString("utf8"), size }
      : { path: at, is_dir: false, content: bytes.toString("base64"), size };
  });
}

export function stat(app: Needs, actor: Actor, id: string, path: string): Promise<z.output<typeof FileStat>> {
  const at = absolute(path);
  return inside(app, actor, id, async (guest) => {
    const found = await guest.stat(at);
    return found ? { path: at, exists: true, ...toEntry(found) } : missing(at);
  });
}

/**
 * Returns the name after which the next page starts. A name that is not UTF-8 has replacement characters instead of its
 * bytes, so the last name without replacement characters is used. The next page may then repeat entries, but misses
 * none.
 */
function nextName(entries: readonly { name: string }[]): string | undefined {
  return entries.findLast(({ name }) => !name.includes("\uFFFD"))?.name;
}

export async function remove(
  app: Needs,
  actor: Actor,
  id: string,
  path: string,
  { recursive = false }: { recursive?: boolean } = {},
): Promise<void> {
  const at = absolute(path);
  await inside(app, actor, id, (guest, row) => guest.remove(at, { recursive, roots: writableRoots(row) }));
}

export function makeDirectory(
  app: Needs,
  actor: Actor,
  id: string,
  { path, mode, parents }: z.output<typeof MakeDirectory>,
): Promise<z.output<typeof FileStat>> {
  const at = absolute(path);
  return inside(app, actor, id, async (guest, row) => {
    await guest.mkdir(at, { mode, parents, roots: writableRoots(row) });
    const made = await guest.stat(at);
    return made ? { path: at, exists: true, ...toEntry(made) } : missing(at);
  });
}

export function move(
  app: Needs,
  actor: Actor,
  id: string,
  input: z.output<typeof Move>,
): Promise<{ from: string; to: string }> {
  const [from, to] = [absolute(input.from), absolute(input.to)];
  return inside(app, actor, id, async (guest, row) => {
    await guest.move(from, to, { overwrite: input.overwrite, roots: writableRoots(row) });
    return { from, to };
  });
}

/**
 * Returns the absolute path. `..` is left to the machine's kernel, because only the kernel knows the targets of
 * symlinks.
 */
export function absolute(path: string): string {
  return posix.isAbsolute(path) ? path : `/workspace/${path}`;
}

function decodeWithin(content: string, field: string): Buffer {
  return requireFit(decode(content, field), field);
}

function requireFit(bytes: Buffer, field: string): Buffer {
  if (bytes.length > fileMaxBytes) throw fileTooLarge(`${field}: at most ${fileMaxBytes} bytes in one call.`);
  return bytes;
}

function missing(path: string): z.output<typeof FileStat> {
  const none = { is_dir: null, size: null, mode: null, modified_at: null, uid: null, gid: null };
  return { path, exists: false, ...none, link_target: null };
}

function toEntry(stat: GuestStat): Omit<z.output<typeof DirectoryEntry>, "name"> {
  return {
    is_dir: stat.isDir,
    size: stat.sizeBytes,
    mode: stat.mode,
    modified_at: stat.modifiedAt.toISOString(),
    uid: stat.uid,
    gid: stat.gid,
    link_target: stat.linkTarget,
  };
}

function rowError(error: unknown): { code: string; message: string } {
  if (error instanceof DomainError && error.code !== "machine_died")
    return { code: error.code, message: error.detail };
  if (error instanceof Error && error.name === "ZodError") {
    return {
      code: "invalid_request",
      message: `path: ${(error as z.ZodError).issues[0]?.message ?? "is invalid"}`,
    };
  }
  // The machine itself failed, so the remaining rows have no result.
  throw error;
}
