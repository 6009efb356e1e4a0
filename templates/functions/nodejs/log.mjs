/**
 * Log lines of the handler, with their level and request. The server reads standard output by lines. A line that begins
 * with the record separator is a record in JSON, and any other line is plain text. A record has `l` level, `r` request
 * and `t` text, or `k` for an event of the wrapper itself.
 */
import { AsyncLocalStorage } from "node:async_hooks";
import { writeSync } from "node:fs";
import { formatWithOptions, inspect } from "node:util";

/** The server cuts lines at 8 KiB, so a record with its escapes must not be longer. */
const recordBytes = 8_000;
const separator = "\u001e";

/** `{ requestId }` of the current request. */
export const current = new AsyncLocalStorage();

/** Writes an event of the wrapper: ready, or the number of tasks behind responses. */
export function tell(event) {
  write(`${separator}${JSON.stringify(event)}\n`);
}

export function say(level, text) {
  const requestId = current.getStore()?.requestId;
  for (const line of text.split("\n")) record(level, requestId, line);
}

function record(level, requestId, text) {
  const json = JSON.stringify({ l: level, r: requestId, t: text });
  if (Buffer.byteLength(json) <= recordBytes) return write(`${separator}${json}\n`);
  let half = Math.min(recordBytes, text.length >> 1);
  // A cut must not split a surrogate pair.
  if ((text.charCodeAt(half) & 0xfc00) === 0xdc00) half -= 1;
  record(level, requestId, text.slice(0, half));
  record(level, requestId, text.slice(half));
}

/** Writes synchronously, so that the last line of a process is not lost. */
function write(line) {
  const bytes = Buffer.from(line);
  for (let at = 0; at < bytes.length;) {
    try {
      at += writeSync(1, bytes, at);
    } catch (error) {
      // The pipe is full because the reader is slow: retry.
      if (error.code !== "EAGAIN") return;
    }
  }
}

/** Formats an error with its stack for the owner's log. */
export function described(error) {
  return error instanceof Error ? inspect(error) : `Thrown: ${inspect(error)}`;
}

export function takeConsole() {
  const at =
    (level) =>
    (...args) =>
      say(level, formatWithOptions({ colors: false }, ...args));
  Object.assign(console, {
    debug: at("debug"),
    log: at("info"),
    info: at("info"),
    warn: at("warn"),
    error: at("error"),
    dir: (value, options) => say("info", inspect(value, { customInspect: false, ...options })),
    trace: (...args) => {
      const { stack } = new Error(formatWithOptions({}, ...args));
      say("error", stack.replace("Error", "Trace"));
    },
    assert: (holds, ...args) => {
      if (!holds)
        say("warn", `Assertion failed${args.length > 0 ? `: ${formatWithOptions({}, ...args)}` : ""}`);
    },
  });
}
