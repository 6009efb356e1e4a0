/** The bytes redis-cli writes of a replica's first sync, as the RDB file they are. */

/** What a server that streams ends with: as many hexadecimal digits, told beforehand. */
const markBytes = 40;
/** Opcode of the end, and the checksum behind it. */
const endBytes = 9;
const endOpcode = 0xff;

/**
 * Without the mark that ends the stream, which redis-cli cuts off a file and leaves on a pipe: behind the end of an RDB
 * file nothing may stand where Redis reads it as its append-only file's base.
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
