/**
 * Responses whose reader takes too few bytes, or none, end: they hold a place among the streams, a file, a connection
 * to the store or a channel of a machine.
 */
import type { ServerResponse } from "node:http";

/** As for git: bytes count in large chunks once the kernel has accepted them, so the window is long. */
const window = { bytesPerSecond: 1024, windowMs: 120_000 };

export interface SlowReaderOptions {
  /** True for a response that is silent at times. It ends only while written bytes wait for the reader. */
  mayBeSilent?: boolean;
  windowMs?: number | undefined;
}

/** Destroys the response at the end of a window in which it fell below the minimum. Call it once headers are written. */
export function endWithSlowReader(
  response: ServerResponse,
  { mayBeSilent = false, windowMs = window.windowMs }: SlowReaderOptions = {},
): void {
  const bytesPerWindow = (window.bytesPerSecond * windowMs) / 1000;
  let before = written(response);
  const timer = setInterval(() => {
    const moved = written(response) - before;
    before += moved;
    const least = response.writableNeedDrain ? bytesPerWindow : mayBeSilent ? 0 : 1;
    if (moved < least) response.destroy();
  }, windowMs).unref();
  response.once("close", () => clearInterval(timer));
  if (response.destroyed) clearInterval(timer);
}

/** Bytes handed to the connection. A write to a full connection waits, so the number stands still with its reader. */
function written({ socket }: ServerResponse): number {
  return socket?.bytesWritten ?? 0;
}
