/** Converts redis-cli's output of a replica's first sync into an RDB file. */

/** Length of the end-of-stream mark, in hexadecimal digits. The server announces the mark before the file. */
const markBytes = 40;
/** Length of the RDB file's end: the end's opcode, and the checksum after it. */
const endBytes = 9;
const endOpcode = 0xff;

/**
 * Yields the stream without the mark at its end. redis-cli removes the mark from a file but not from a pipe. Redis
 * rejects bytes after the end of an RDB file that is the base of its append-only file.
 */
export async function* withoutMark(content: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  let held: Buffer = Buffer.alloc(0);
  for await (const piece of content) {
    const all = held.length === 0 ? piece : Buffer.concat([held, piece]);
    const keep = Math.min(all.length, markBytes + endBytes);
    if (all.length > keep) yield all.subarray(0, all.length - keep);
    held = Buffer.from(all.subarray(all.length - keep));
  }
  const isMarked =
    held.length === markBytes + endBytes &&
    held[0] === endOpcode &&
    /^[0-9a-f]+$/.test(held.subarray(endBytes).toString("latin1"));
  yield isMarked ? held.subarray(0, endBytes) : held;
}
