/**
 * Streams raw bytes of a file for the holder of a pre-signed URL: no base64, no cap of 16 MiB, and only the chunks in
 * flight in memory. The slower side, caller or machine, limits the other.
 */
import type { Readable } from "node:stream";
import type { FileStat } from "#machines/host/guest.ts";
import { fileNotFound, isDirectory } from "#machines/errors.ts";
import { insideSigned, type InsideNeeds } from "../sandboxes/sandboxes.ts";
import { rangeNotSatisfiable } from "./errors.ts";
import { defaultMode, writableRoots } from "./limits.ts";

/** Requested range: the bytes from `first` to `last`, both included, or the last `count` bytes. */
export type ByteRange = { first: number; last: number } | { count: number };

/** A file or a part of it: `length` bytes from `offset` on. */
export interface Download {
  stat: FileStat;
  offset: number;
  length: number;
  content: Readable;
}

/**
 * Opens a file for a download. `choose` selects the range once the file's size is known; undefined selects the whole
 * file.
 */
export function openDownload(
  app: InsideNeeds,
  id: string,
  path: string,
  choose?: (stat: FileStat) => ByteRange | undefined,
): Promise<Download> {
  return insideSigned(app, id, async (guest) => {
    const known = choose && existing(await guest.stat(path), path);
    const wanted = known && choose(known);
    if (!wanted) {
      const { stat, content } = await guest.readFile(path);
      return { stat, content, offset: 0, length: stat.sizeBytes };
    }
    const { offset, length } = within(wanted, known.sizeBytes);
    const { stat, content } = await guest.readFile(path, { offset, length });
    return { stat, content, offset, length };
  });
}

export function statDownload(app: InsideNeeds, id: string, path: string): Promise<FileStat> {
  return insideSigned(app, id, async (guest) => existing(await guest.stat(path), path));
}

/** Writes an upload to a file. The file appears complete, with mode 0644, or not at all. */
export function receiveUpload(
  app: InsideNeeds,
  id: string,
  path: string,
  content: AsyncIterable<Buffer>,
): Promise<{ path: string; bytes_written: number }> {
  return insideSigned(app, id, async (guest, row) => {
    const roots = writableRoots(row);
    const { sizeBytes } = await guest.writeFile(path, content, { mode: defaultMode, roots });
    return { path, bytes_written: sizeBytes };
  });
}

function existing(stat: FileStat | undefined, path: string): FileStat {
  if (!stat) throw fileNotFound(`${path}: No such file or directory`);
  if (stat.isDir) throw isDirectory(`${path}: Is a directory`);
  return stat;
}

function within(wanted: ByteRange, sizeBytes: number): { offset: number; length: number } {
  const offset = "count" in wanted ? Math.max(0, sizeBytes - wanted.count) : wanted.first;
  const end = "count" in wanted ? sizeBytes : Math.min(wanted.last + 1, sizeBytes);
  if (end <= offset) throw rangeNotSatisfiable(sizeBytes);
  return { offset, length: end - offset };
}
