/**
 * Reads the listening TCP ports of a machine from its kernel's tables (proc_pid_net(5)). An error can then name the
 * port of an app that ignores `PORT`. The machine controls the text, so its length is bounded and malformed lines are
 * skipped.
 */
import type { Guest } from "#machines/host/guest.ts";

const tables = ["/proc/net/tcp", "/proc/net/tcp6"];
const maxBytes = 1024 ** 2;
/** Value of `TCP_LISTEN` in include/net/tcp_states.h. */
const listening = "0A";
const shown = 5;

/** Returns at most five ports in ascending order. Returns none if the machine does not respond. */
export async function listeningPorts(guest: Guest): Promise<number[]> {
  const texts = await Promise.all(tables.map((path) => textOf(guest, path).catch(() => "")));
  return [...new Set(texts.flatMap(portsIn))].toSorted((a, b) => a - b).slice(0, shown);
}

export function portsIn(table: string): number[] {
  return table.split("\n").flatMap((line) => {
    const [, port, state] =
      /^\s*\d+: [0-9A-F]{8,32}:([0-9A-F]{4}) [0-9A-F]{8,32}:[0-9A-F]{4} ([0-9A-F]{2}) /.exec(line) ?? [];
    return port !== undefined && state === listening ? [Number.parseInt(port, 16)] : [];
  });
}

async function textOf(guest: Guest, path: string): Promise<string> {
  const { content } = await guest.readFile(path, { maxBytes });
  const pieces: Buffer[] = [];
  for await (const piece of content) pieces.push(piece as Buffer);
  return Buffer.concat(pieces).toString("latin1");
}
