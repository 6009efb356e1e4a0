/**
 * What the handler says, with its level and the request that said it. The server reads standard output by lines: one
 * that begins with the record separator is a record of ours as JSON, everything else is plain text. A record says
 * `l` level, `r` request, `t` text, or, from the wrapper itself, `k` what has happened.
 */
import { AsyncLocalStorage } from "node:async_hooks";
import { writeSync } from "node:fs";
import { formatWithOptions, inspect } from "node:util";

/** The server cuts lines at 8 KiB: a record must not be longer, however it is escaped. */
const recordBytes = 8_000;
const separator = "\u001e";

/** `{ requestId }` of the request that is being answered. */
export const current = new AsyncLocalStorage();

/** One event of the wrapper: ready to answer, or how much goes on behind answers. */
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
  // Not within a pair of surrogates.
  if ((text.charCodeAt(half) & 0xfc00) === 0xdc00) half -= 1;
  record(level, requestId, text.slice(0, half));
  record(level, requestId, text.slice(half));
}

/** At once, so that what a process says last is not lost with it. */
function write(line) {
  const bytes = Buffer.from(line);
  for (let at = 0; at < bytes.length;) {
    try {
      at += writeSync(1, bytes, at);
    } catch (error) {
      // Whoever reads is behind: there is nothing else to do than to try again.
      if (error.code !== "EAGAIN") return;
    }
  }
}

/** What an error says of itself, with its stack, for its owner alone. */
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
