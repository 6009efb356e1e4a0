/**
 * Applies a machine's changes to a copy of its image: the reader of guest/PROTOCOL.md, "Capture".
 *
 * The stream comes from inside the machine, so every byte of it is hostile. The stream cannot name a path. An entry is
 * one component of its directory, and this process made that directory or verified that it is a real directory. Links
 * are never followed. The format has no devices. A replaced file is deleted and made again. The copy's files are hard
 * links to the base's files, which must not be written to. Bytes and entries are counted as they arrive.
 */
import type { Dirent } from "node:fs";
import {
  chmod,
  chown,
  lchown,
  link,
  lutimes,
  mkdir,
  open,
  readdir,
  rm,
  symlink,
  utimes,
} from "node:fs/promises";
import path from "node:path";
import { RuntimeError } from "../driver.ts";

export interface CaptureLimits {
  /** Limit of all contents together. A sparse file counts with its stated size. */
  maxBytes: number;
  /** Limit of the number of names in the whole image. */
  maxEntries: number;
}

/** Longest path in bytes: Linux's PATH_MAX without the NUL. */
const MAX_PATH_BYTES = 4095;
/** Size in bytes up to which contents are written while the next records are read. */
const SMALL_BYTES = 256 * 1024;
const SMALL_AT_ONCE = 16;
/** The last second that ext4 can store, in seconds since 1970. */
const LAST_SECOND = 15_032_385_535;
const NOBODY_CHANGES = 0xffff_ffff;

interface Owner {
  mode: number;
  uid: number;
  gid: number;
  modified: number;
}

interface Directory {
  path: string;
  owner: Owner | undefined;
  /** Entries in the copy of the base. */
  base: Map<string, Dirent>;
  named: Set<string>;
}

/**
 * Applies the stream to `rootfs`, a copy of the machine's image. Fails with `image_failed` beyond a limit,
 * and with `guest_protocol` for an invalid stream. After a failure, `rootfs` is invalid.
 */
export async function applyCapture(
  rootfs: string,
  stream: AsyncIterable<Buffer>,
  limits: CaptureLimits,
): Promise<void> {
  const reader = new Reader(stream);
  const writes = new Writes();
  try {
    await new Applying(reader, writes, limits).run(rootfs);
  } finally {
    await reader.close();
    await writes.settle();
  }
  await writes.done();
}

class Applying {
  readonly #reader: Reader;
  readonly #writes: Writes;
  readonly #limits: CaptureLimits;
  /** Paths of files with several names that this capture made, in the order of their arrival. */
  readonly #linked: string[] = [];
  #entries = 0;
  #bytes = 0;

  constructor(reader: Reader, writes: Writes, limits: CaptureLimits) {
    this.#reader = reader;
    this.#writes = writes;
    this.#limits = limits;
  }

  async run(rootfs: string): Promise<void> {
    const above: Directory[] = [];
    let current = await openDirectory(rootfs, undefined);
    for (;;) {
      const type = String.fromCharCode((await this.#reader.take(1))[0] ?? 0);
      if (type === "E" || type === "U") {
        await this.#leave(current);
        const parent = above.pop();
        if ((parent === undefined) !== (type === "E")) throw refuse(`${type} at the wrong depth`);
        if (parent === undefined) return;
        current = parent;
        continue;
      }
      const name = await this.#name(current);
      if (type === "=") {
        if (!current.base.has(name)) throw refuse("an unchanged file that is not in the image");
      } else if (type === "D") {
        above.push(current);
        current = await this.#enter(current, name);
      } else {
        const make = this.#makers[type];
        if (make === undefined) throw refuse(`a record of type ${JSON.stringify(type)}`);
        await clear(current, name);
        await make(path.join(current.path, name));
      }
    }
  }

  readonly #makers: Record<string, (at: string) => Promise<void>> = {
    F: (at) => this.#file(at),
    H: (at) => this.#link(at),
    L: (at) => this.#symlink(at),
  };

  async #name(directory: Directory): Promise<string> {
    const [length = 0] = await this.#reader.take(1);
    const bytes = await this.#reader.take(length);
    // Names are bytes. This process handles only those that are UTF-8, and nearly all are.
    const name = bytes.toString("utf8");
    if (!Buffer.from(name).equals(bytes)) throw unusable("a file's name is not UTF-8");
    if (length === 0 || name === "." || name === ".." || /[/\0]/.test(name)) throw refuse("an invalid name");
    if (directory.named.has(name)) throw refuse("a repeated name in one directory");
    directory.named.add(name);
    this.#entries += 1;
    if (this.#entries > this.#limits.maxEntries) {
      throw unusable(`it contains more than ${this.#limits.maxEntries} files`);
    }
    if (Buffer.byteLength(directory.path) + 1 + length > MAX_PATH_BYTES) throw unusable("a path is too long");
    return name;
  }

  async #owner(): Promise<Owner> {
    const head = await this.#reader.take(22);
    const owner = { mode: head.readUInt16LE(0), uid: head.readUInt32LE(2), gid: head.readUInt32LE(6) };
    if (owner.mode > 0o7777 || owner.uid === NOBODY_CHANGES || owner.gid === NOBODY_CHANGES) {
      throw refuse("an invalid owner or mode");
    }
    const seconds = Number(head.readBigInt64LE(10)) + head.readUInt32LE(18) / 1e9;
    return { ...owner, modified: Math.min(Math.max(seconds, 0), LAST_SECOND) };
  }

  async #enter(parent: Directory, name: string): Promise<Directory> {
    const owner = await this.#owner();
    const at = path.join(parent.path, name);
    if (parent.base.get(name)?.isDirectory() !== true) {
      await clear(parent, name);
      await mkdir(at, { mode: 0o700 });
    }
    return openDirectory(at, owner);
  }

  /**
   * Finishes a directory. Deletes entries that the stream did not name. Times are set last, because every change of an
   * entry sets them.
   */
  async #leave(directory: Directory): Promise<void> {
    for (const name of directory.base.keys()) {
      if (!directory.named.has(name)) await clear(directory, name);
    }
    if (directory.owner === undefined) return;
    const { mode, uid, gid, modified } = directory.owner;
    await this.#writes.done();
    await chown(directory.path, uid, gid);
    await chmod(directory.path, mode);
    await utimes(directory.path, modified, modified);
  }

  async #file(at: string): Promise<void> {
    const owner = await this.#owner();
    const head = await this.#reader.take(9);
    const size = Number(head.readBigUInt64LE(1));
    this.#bytes += size;
    if (this.#bytes > this.#limits.maxBytes) {
      throw unusable(
        `the created and changed files exceed ${Math.floor(this.#limits.maxBytes / 1024 ** 2)} MiB`,
      );
    }
    if (head[0] === 1) this.#linked.push(at);
    if (size <= SMALL_BYTES) {
      const content = await this.#reader.take(size);
      await this.#writes.add(writeFile(at, owner, [content]));
    } else {
      await writeFile(at, owner, this.#reader.pieces(size));
    }
  }

  async #link(at: string): Promise<void> {
    const first = this.#linked[(await this.#reader.take(4)).readUInt32LE(0)];
    if (first === undefined) throw refuse("another name of a file that did not arrive");
    await this.#writes.done();
    await link(first, at);
  }

  async #symlink(at: string): Promise<void> {
    const { uid, gid, modified } = await this.#owner();
    const length = (await this.#reader.take(2)).readUInt16LE(0);
    const target = await this.#reader.take(length);
    if (length === 0 || length > MAX_PATH_BYTES || target.includes(0))
      throw refuse("a symlink with an invalid target");
    await symlink(target, at);
    await lchown(at, uid, gid);
    await lutimes(at, modified, modified);
  }
}

async function openDirectory(at: string, owner: Owner | undefined): Promise<Directory> {
  const entries = await readdir(at, { withFileTypes: true });
  return { path: at, owner, base: new Map(entries.map((entry) => [entry.name, entry])), named: new Set() };
}

/** Deletes the entry of that name in the copy. The base image keeps its own link to the file. */
async function clear(directory: Directory, name: string): Promise<void> {
  if (directory.base.has(name)) await rm(path.join(directory.path, name), { recursive: true });
}

async function writeFile(
  at: string,
  { uid, gid, mode, modified }: Owner,
  content: Iterable<Buffer> | AsyncIterable<Buffer>,
): Promise<void> {
  // Exclusive: never opens a link at that path.
  const file = await open(at, "wx", 0o600);
  try {
    for await (const piece of content) await file.writeFile(piece);
    // The mode comes after the owner, because a change of owner clears setuid.
    await file.chown(uid, gid);
    await file.chmod(mode);
    await file.utimes(modified, modified);
  } finally {
    await file.close();
  }
}

/** Writes of small files in flight: each takes half a dozen calls with little work. */
class Writes {
  readonly #running = new Set<Promise<void>>();
  #failure: { error: unknown } | undefined;

  async add(write: Promise<void>): Promise<void> {
    const noted = write
      .catch((error: unknown) => void (this.#failure ??= { error }))
      .finally(() => this.#running.delete(noted));
    this.#running.add(noted);
    if (this.#running.size >= SMALL_AT_ONCE) await Promise.race(this.#running);
    if (this.#failure !== undefined) throw this.#failure.error;
  }

  async settle(): Promise<void> {
    await Promise.all(this.#running);
  }

  async done(): Promise<void> {
    await this.settle();
    if (this.#failure !== undefined) throw this.#failure.error;
  }
}

/** Reads a stream in pieces. Buffers at most one requested piece and one piece that arrived. */
class Reader {
  readonly #source: AsyncIterator<Buffer>;
  #held: Buffer = Buffer.alloc(0);

  constructor(stream: AsyncIterable<Buffer>) {
    this.#source = stream[Symbol.asyncIterator]();
  }

  /** Closes the sender, even if not everything was read. */
  async close(): Promise<void> {
    await this.#source.return?.();
  }

  /** Reads exactly this many bytes. Returns them at once if they are buffered: most records have only a dozen bytes. */
  take(length: number): Buffer | Promise<Buffer> {
    return this.#held.length >= length ? this.#cut(length) : this.#fill(length).then(() => this.#cut(length));
  }

  async *pieces(length: number): AsyncGenerator<Buffer> {
    for (let left = length; left > 0;) {
      if (this.#held.length === 0) this.#held = await this.#next();
      const piece = this.#cut(Math.min(left, this.#held.length));
      left -= piece.length;
      yield piece;
    }
  }

  #cut(length: number): Buffer {
    const piece = this.#held.subarray(0, length);
    this.#held = this.#held.subarray(length);
    return piece;
  }

  async #fill(length: number): Promise<void> {
    const pieces = [this.#held];
    for (let held = this.#held.length; held < length;) {
      const piece = await this.#next();
      pieces.push(piece);
      held += piece.length;
    }
    this.#held = Buffer.concat(pieces);
  }

  async #next(): Promise<Buffer> {
    const next = await this.#source.next();
    if (next.done === true) throw refuse("the stream ended early");
    return next.value;
  }
}

function refuse(what: string): RuntimeError {
  return new RuntimeError("guest_protocol", `the machine's capture stream is invalid: ${what}`);
}

function unusable(why: string): RuntimeError {
  return new RuntimeError("image_failed", `the machine's files cannot become an image: ${why}`);
}
