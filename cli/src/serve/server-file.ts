/**
 * The server's files for other processes, in its data directory: `server.json` while it listens, and `operator.json`
 * (mode 0600) from the first start on.
 */
import { existsSync, readFileSync } from "node:fs";
import path from "node:path";

export interface RunningServer {
  pid: number;
  port: number;
  base_url: string;
}

/** Credentials of the first account, written by the first start. */
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

/**
 * Returns the file of the server's own certificate authority; null if a public authority or a proxy provides the
 * certificate.
 */
export function findCaFile(data: string): string | null {
  const file = path.join(data, "ca.crt");
  return existsSync(file) ? file : null;
}

/** Finds the server of this data directory; undefined if none runs. Files of a dead server are ignored. */
export function findRunning(data: string): RunningServer | undefined {
  const server = readJson<RunningServer>(path.join(data, "server.json"));
  return server && isServer(server.pid) ? server : undefined;
}

/**
 * Returns whether the process is a server. Another process may have the pid by now, so the command line is compared.
 */
export function isServer(pid: number): boolean {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").includes("server/src/main.ts");
  } catch {
    return false;
  }
}

/** Returns whether the process is the shim that keeps a server's listening sockets open: `kontor-shim keep`. */
export function isKeeper(pid: number): boolean {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").includes("kontor-shim\0keep\0");
  } catch {
    return false;
  }
}

/** Returns the pid of the parent. Undefined if the process does not exist. */
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
