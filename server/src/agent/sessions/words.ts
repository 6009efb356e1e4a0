/** What is said in a session, as the statements that store it take it. */
import { type RawBuilder, sql } from "kysely";
import { storableJson } from "../storable.ts";
import { sessionFull } from "./errors.ts";
import { hasRoomFor, messagesAdded, type MessageKind, type NewMessage, sessionGrown } from "./store.ts";

export type Words = readonly NewMessage[];

export const sessionMaxMiB = 32;
const sessionMaxBytes = sessionMaxMiB * 1024 ** 2;

/** The message is what a reader finds: what can't be stored of it is replaced. */
export function toWords(
  runId: string,
  said: readonly { kind: MessageKind; message: unknown }[],
): NewMessage[] {
  return said.map(({ kind, message }) => {
    const text = storableJson(message);
    const run_id = kind === "seed" ? null : runId;
    return { run_id, kind, message: JSON.parse(text) as unknown, text, bytes: Buffer.byteLength(text) };
  });
}

export const full = () => sessionFull(sessionMaxMiB);

/** Whether a session that holds `bytes` may hold these as well. */
export function isRoomFor(words: Words, bytes: number): boolean {
  return words.reduce((sum, one) => sum + one.bytes, bytes) <= sessionMaxBytes;
}

export function hasRoom(sessionId: RawBuilder<unknown>, words: Words): RawBuilder<unknown> {
  return hasRoomFor(sessionId, words, sessionMaxBytes);
}

/** Parts of a statement whose `run` is the row of a run in the session. */
export function wordsAdded(words: Words): RawBuilder<unknown> {
  return sql`${sessionGrown(words)}, ${messagesAdded(words)}`;
}
