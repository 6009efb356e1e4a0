/**
 * The one door to child processes on this side: argv arrays, never a shell; output bounded; what failed is named.
 */
import { spawn, type StdioOptions } from "node:child_process";
import { accessSync, constants } from "node:fs";
import path from "node:path";

export interface RunOptions {
  cwd?: string;
  env?: NodeJS.ProcessEnv;
  /** Called with every line of stdout and stderr as it comes. */
  onLine?: (line: string) => void;
  /** Called with every line the child writes on file descriptor 3. */
  onStatus?: (line: string) => void;
  /** SIGKILL at this age. */
  timeoutMs?: number;
}

export interface Ran {
  /** 128 + n for a signal, 127 where the program is not there. */
  code: number;
  /** stdout and stderr as they came, the last 1 MiB. */
  output: string;
}

const outputMax = 1 << 20;

/** Runs a command to its end and answers its exit code; throws nothing. */
export function run(argv: readonly [string, ...string[]], options: RunOptions = {}): Promise<Ran> {
  const { onLine, onStatus } = options;
  const stdio: StdioOptions = onStatus ? ["ignore", "pipe", "pipe", "pipe"] : ["ignore", "pipe", "pipe"];
  const child = spawn(argv[0], argv.slice(1), {
    cwd: options.cwd,
    env: options.env ?? process.env,
    stdio,
    timeout: options.timeoutMs,
    killSignal: "SIGKILL",
  });
  let output = "";
  const collect = (text: string): void => {
    output = (output + text).slice(-outputMax);
  };
  for (const stream of [child.stdout, child.stderr]) {
    stream?.setEncoding("utf8");
    stream?.on("data", collect);
    if (stream && onLine) eachLine(stream, onLine);
  }
  const status = child.stdio[3];
  if (onStatus && status) eachLine(status as NodeJS.ReadableStream, onStatus);
  return new Promise((resolve) => {
    child.on("error", (error) => resolve({ code: 127, output: `${argv[0]}: ${error.message}` }));
    child.on("close", (code, signal) =>
      resolve({ code: code ?? (signal === "SIGKILL" ? 137 : 143), output }),
    );
  });
}

/** Runs a command on this terminal and answers its exit code. */
export function runHere(
  argv: readonly [string, ...string[]],
  options: { cwd?: string; env?: NodeJS.ProcessEnv } = {},
): Promise<number> {
  const child = spawn(argv[0], argv.slice(1), { ...options, stdio: "inherit" });
  // Ctrl-C reaches the child as well; it decides how to end, and this process waits for it
  const ignore = (): void => {};
  process.on("SIGINT", ignore);
  return new Promise((resolve, reject) => {
    child.on("error", reject);
    child.on("close", (code) => {
      process.off("SIGINT", ignore);
      resolve(code ?? 130);
    });
  });
}

/**
 * Starts a process that outlives this one: its own session, all output to `logFd`. It does not keep this process from
 * ending either; who wants to wait for it waits on `exit` with a timer of their own.
 */
export function startDetached(
  argv: readonly [string, ...string[]],
  logFd: number,
  env: NodeJS.ProcessEnv,
): StartedProcess {
  const child = spawn(argv[0], argv.slice(1), { detached: true, env, stdio: ["ignore", logFd, logFd] });
  const exit = new Promise<string>((resolve) => {
    child.on("error", (error) => resolve(error.message));
    child.on("exit", (code, signal) => resolve(signal ? `killed by ${signal}` : `exit code ${code}`));
  });
  child.unref();
  return { pid: child.pid ?? -1, exit };
}

export interface StartedProcess {
  pid: number;
  /** Settles with how it ended. */
  exit: Promise<string>;
}

function eachLine(stream: NodeJS.ReadableStream, onLine: (line: string) => void): void {
  let rest = "";
  stream.setEncoding("utf8");
  stream.on("data", (text: string) => {
    const lines = (rest + text).split(/\r?\n|\r/);
    rest = lines.pop() ?? "";
    for (const line of lines) onLine(line);
  });
  stream.on("end", () => rest && onLine(rest));
}

/** Where a program is, also in the sbin folders that a plain user's PATH lacks. */
export function findProgram(name: string): string | undefined {
  const folders = [...(process.env["PATH"] ?? "").split(":"), "/usr/sbin", "/sbin", "/usr/local/sbin"];
  return folders.map((folder) => path.join(folder, name)).find(isExecutable);
}

function isExecutable(file: string): boolean {
  try {
    accessSync(file, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}
