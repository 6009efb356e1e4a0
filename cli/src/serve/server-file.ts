/**
 * What the server leaves in its data directory for those who come after: `server.json` while it listens, and
 * `operator.json` (mode 0600) from the first start on.
 */
import { existsSync, readFileSync } from "node:fs";
import path from "node:path";

export interface RunningServer {
  pid: number;
  port: number;
  base_url: string;
}

/** The credentials of the first account, as the first start wrote them. */
export interface Operator {
  base_url: string;
  email: string;
  password: string;
  token: string;
}

export function operatorFile(data: string): string {
  return path.join(data, "operator.json");
}

export function logFile(data: string): string {
  return path.join(data, "logs", "server.log");
}

export function readOperator(data: string): Operator | undefined {
  return readJson<Operator>(operatorFile(data));
}

/** The server's own certificate authority; null where it has none, and a public one or a proxy vouches for it. */
export function findCaFile(data: string): string | null {
  const file = path.join(data, "ca.crt");
  return existsSync(file) ? file : null;
}

/** The server that serves this data directory now; undefined where none does, whatever a dead one left. */
export function findRunning(data: string): RunningServer | undefined {
  const server = readJson<RunningServer>(path.join(data, "server.json"));
  return server && isServer(server.pid) ? server : undefined;
}

/** A pid alone may have been given to another program since: its command line must be the server's. */
export function isServer(pid: number): boolean {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").includes("server/src/main.ts");
  } catch {
    return false;
  }
}

/** What keeps a server's doors open: `kontor-shim keep`. */
export function isKeeper(pid: number): boolean {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").includes("kontor-shim\0keep\0");
  } catch {
    return false;
  }
}

/** Undefined where there is no such process (any more). */
export function parentOf(pid: number): number | undefined {
  try {
    return Number(/^PPid:\s+(\d+)$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1]);
  } catch {
    return undefined;
  }
}

function readJson<T>(file: string): T | undefined {
  try {
    return JSON.parse(readFileSync(file, "utf8")) as T;
  } catch {
    return undefined;
  }
}
