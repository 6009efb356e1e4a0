/**
 * Counts HTTP bytes between visitors and an app, as the app sees them: headers and bodies, and both directions of a
 * WebSocket.
 */
import type { IncomingMessage } from "node:http";
import type { Readable } from "node:stream";

export interface Traffic {
  /** Bytes from visitors to the app. */
  rxBytes: number;
  /** Bytes from the app to visitors. */
  txBytes: number;
}

type Counter = Traffic | undefined;

/** Call it once per exchange, when the response begins. Counts names, values and separators, without the first line. */
export function countHeads(traffic: Counter, headers: readonly string[], answer: IncomingMessage): void {
  if (!traffic) return;
  traffic.rxBytes += headBytes(headers);
  traffic.txBytes += headBytes(answer.rawHeaders);
}

/** Counts the bytes of a stream. Call it in the tick in which `from` begins to flow. */
export function countStream(traffic: Counter, direction: keyof Traffic, from: Readable): void {
  if (traffic) from.on("data", (piece: Buffer) => void (traffic[direction] += piece.length));
}

/** `Name: value\r\n`: four bytes of separators for each pair. */
function headBytes(headers: readonly string[]): number {
  return headers.reduce((sum, text) => sum + text.length + 2, 0);
}
