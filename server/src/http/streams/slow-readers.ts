/**
 * Ends responses whose client reads too slowly. Each such response holds a stream slot, a file, a connection to the
 * store or a channel of a machine.
 */
import type { ServerResponse } from "node:http";

/** Minimum rate, which is the same as for git. The window is long because the kernel accepts bytes in large chunks. */
const window = { bytesPerSecond: 1024, windowMs: 120_000 };

export interface SlowReaderOptions {
  /** True for a response that may be silent. Such a response ends only while written bytes wait for the client. */
  mayBeSilent?: boolean;
  windowMs?: number | undefined;
}

/**
 * Destroys the response if it falls below the minimum rate in a window that starts and ends with waiting bytes. Call it
 * after the headers are written.
 */
export function endWithSlowReader(
  response: ServerResponse,
  { mayBeSilent = false, windowMs = window.windowMs }: SlowReaderOptions = {},
): void {
  const bytesPerWindow = (window.bytesPerSecond * windowMs) / 1000;
  let before = bytesWritten(response);
  let hasWaited = false;
  const timer = setInterval(() => {
    const moved = bytesWritten(response) - before;
    before += moved;
    // Bytes that were written at the end of a silent window had no time to move.
    const isSlow = response.writableNeedDrain && hasWaited;
    hasWaited = response.writableNeedDrain;
    const least = isSlow ? bytesPerWindow : mayBeSilent ? 0 : 1;
    if (moved < least) response.destroy();
  }, windowMs).unref();
  response.once("close", () => clearInterval(timer));
  if (response.destroyed) clearInterval(timer);
}

/** Bytes written to the connection. The number does not grow while the client reads nothing. */
function bytesWritten({ socket }: ServerResponse): number {
  return socket?.bytesWritten ?? 0;
}
