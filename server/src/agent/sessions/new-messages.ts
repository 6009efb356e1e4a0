/** Messages of a session in the form that statements store. */
import { type RawBuilder, sql } from "kysely";
import { storableJson } from "../storable.ts";
import { sessionFull } from "./errors.ts";
import { hasRoomFor, insertMessages, type MessageKind, type NewMessage, growSession } from "./store.ts";

export type NewMessages = readonly NewMessage[];

const sessionMaxMiB = 32;
const sessionMaxBytes = sessionMaxMiB * 1024 ** 2;

/**
 * Converts messages for storage, and replaces characters that PostgreSQL cannot store. `message` equals the stored
 * text.
 */
export function toNewMessages(
  runId: string,
  said: readonly { kind: MessageKind; message: unknown }[],
): NewMessage[] {
  return said.map(({ kind, message }) => {
    const text = storableJson(message);
    const run_id = kind === "seed" ? null : runId;
    return { run_id, kind, message: JSON.parse(text) as unknown, text, bytes: Buffer.byteLength(text) };
  });
}

export const sessionFullError = () => sessionFull(sessionMaxMiB);

/** Returns true if the messages fit into a session whose messages already have `bytes`. */
export function fitsInSession(words: NewMessages, bytes: number): boolean {
  return words.reduce((sum, one) => sum + one.bytes, bytes) <= sessionMaxBytes;
}

export function hasRoom(sessionId: RawBuilder<unknown>, words: NewMessages): RawBuilder<unknown> {
  return hasRoomFor(sessionId, words, sessionMaxBytes);
}

/** Returns the CTEs that append messages, for a statement whose `run` is the row of a run in the session. */
export function appendMessages(words: NewMessages): RawBuilder<unknown> {
  return sql`${growSession(words)}, ${insertMessages(words)}`;
}
