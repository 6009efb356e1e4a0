/**
 * What a machine made of its image, put onto a copy of that image: the reading side of guest/PROTOCOL.md, "Capture".
 *
 * The stream comes from inside, so every byte of it is an enemy's. It cannot name a path: an entry is one component of
 * the directory it stands in, and that directory is one this process made or found to be a real one; nothing is ever
 * followed. It has no word for a device. What it replaces is taken away first and made anew, because the copy's files
 * are hard links of the base's, which must never be written to. Bytes and entries are counted as they come.
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
  /** Of all contents together. A sparse file counts as long as it says it is. */
  maxBytes: number;
  /** Names in the whole image. */
  maxEntries: number;
}

/** Linux's PATH_MAX without the NUL. */
const MAX_PATH_BYTES = 4095;
/** Contents up to here are written while the next records are read. */
const SMALL_BYTES = 256 * 1024;
const SMALL_AT_ONCE = 16;
/** The end of ext4's time. */
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
  /** As the copy of the base has it. */
  base: Map<string, Dirent>;
  named: Set<string>;
}

/**
 * Brings `rootfs`, a copy of the machine's image, to what the stream says. Fails with `image_failed` past a limit and
 * with `guest_protocol` where the stream says what it cannot; what is there then is worthless.
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
  /** Paths of files with several names, made here, in the order they came. */
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
        if (!current.base.has(name)) throw refuse("an unchanged file that the image has not");
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
    // Names are bytes; this process works with those that are text, and nearly all are.
    const name = bytes.toString("utf8");
    if (!Buffer.from(name).equals(bytes)) throw unusable("a file's name is not UTF-8");
    if (length === 0 || name === "." || name === ".." || /[/\0]/.test(name))
      throw refuse("a name that is none");
    if (directory.named.has(name)) throw refuse("a name twice in one directory");
    directory.named.add(name);
    this.#entries += 1;
    if (this.#entries > this.#limits.maxEntries) {
      throw unusable(`it holds more than ${this.#limits.maxEntries} files`);
    }
    if (Buffer.byteLength(directory.path) + 1 + length > MAX_PATH_BYTES) throw unusable("a path is too long");
    return name;
  }

  async #owner(): Promise<Owner> {
    const head = await this.#reader.take(22);
    const owner = { mode: head.readUInt16LE(0), uid: head.readUInt32LE(2), gid: head.readUInt32LE(6) };
    if (owner.mode > 0o7777 || owner.uid === NOBODY_CHANGES || owner.gid === NOBODY_CHANGES) {
      throw refuse("an owner or mode that is none");
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

  /** What was not named is gone; the times come last, for every change of an entry sets them. */
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
        `what was made or changed is more than ${Math.floor(this.#limits.maxBytes / 1024 ** 2)} MiB`,
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
    if (first === undefined) throw refuse("another name of a file that did not come");
    await this.#writes.done();
    await link(first, at);
  }

  async #symlink(at: string): Promise<void> {
    const { uid, gid, modified } = await this.#owner();
    const length = (await this.#reader.take(2)).readUInt16LE(0);
    const target = await this.#reader.take(length);
    if (length === 0 || length > MAX_PATH_BYTES || target.includes(0)) throw refuse("a symlink to nothing");
    await symlink(target, at);
    await lchown(at, uid, gid);
    await lutimes(at, modified, modified);
  }
}

async function openDirectory(at: string, owner: Owner | undefined): Promise<Directory> {
  const entries = await readdir(at, { withFileTypes: true });
  return { path: at, owner, base: new Map(entries.map((entry) => [entry.name, entry])), named: new Set() };
}

/** Takes away what the copy has under the name: the file it is a link of stays as it is. */
async function clear(directory: Directory, name: string): Promise<void> {
  if (directory.base.has(name)) await rm(path.join(directory.path, name), { recursive: true });
}

async function writeFile(
  at: string,
  { uid, gid, mode, modified }: Owner,
  content: Iterable<Buffer> | AsyncIterable<Buffer>,
): Promise<void> {
  // Exclusive: it is never a link that lies there.
  const file = await open(at, "wx", 0o600);
  try {
    for await (const piece of content) await file.writeFile(piece);
    // The mode after the owner: a change of owner takes setuid away.
    await file.chown(uid, gid);
    await file.chmod(mode);
    await file.utimes(modified, modified);
  } finally {
    await file.close();
  }
}

/** Small files under way: writing one is half a dozen calls of little work each. */
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

/** A stream by the piece; never holds more than one piece asked for and one that came. */
class Reader {
  readonly #source: AsyncIterator<Buffer>;
  #held: Buffer = Buffer.alloc(0);

  constructor(stream: AsyncIterable<Buffer>) {
    this.#source = stream[Symbol.asyncIterator]();
  }

  /** Whoever sends is let go of, also where not all was read. */
  async close(): Promise<void> {
    await this.#source.return?.();
  }

  /** Exactly so many bytes. Answers at once where they are held: most records are a dozen bytes. */
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
  return new RuntimeError("guest_protocol", `what the machine said of its files makes no sense: ${what}`);
}

function unusable(why: string): RuntimeError {
  return new RuntimeError("image_failed", `the machine's files cannot become an image: ${why}`);
}
