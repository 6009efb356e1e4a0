/**
 * Runs every child process of the command: argv arrays without a shell, bounded output, and errors that name the
 * program.
 */
import { spawn, type StdioOptions } from "node:child_process";
import { accessSync, constants } from "node:fs";
import path from "node:path";

export interface RunOptions {
  cwd?: string;
  env?: NodeJS.ProcessEnv;
  /** Receives each line of stdout and stderr. */
  onLine?: (line: string) => void;
  /** Receives each line that the child writes to file descriptor 3. */
  onStatus?: (line: string) => void;
  /** Time in milliseconds after which the child gets SIGKILL. */
  timeoutMs?: number;
}

export interface Ran {
  /** Exit code: 128 + n after a signal, 127 if the program does not exist. */
  code: number;
  /** The last 1 MiB of stdout and stderr together. */
  output: string;
}

const outputMax = 1 << 20;

/**
 * Time to wait for the end of the output after the child exits. Processes that the child left running may keep the
 * output open.
 */
const drainMs = 5_000;

/**
 * Runs a command to its end and returns its exit code. Never throws. Does not wait for processes that the command left
 * running.
 */
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
    child.on("exit", () => {
      const drain = setTimeout(() => {
        for (const stream of [child.stdout, child.stderr, child.stdio[3]]) stream?.destroy();
      }, drainMs);
      child.on("close", () => clearTimeout(drain));
    });
    child.on("close", (code, signal) =>
      resolve({ code: code ?? (signal === "SIGKILL" ? 137 : 143), output }),
    );
  });
}

/** Runs a command on this terminal and returns its exit code. */
export function runHere(
  argv: readonly [string, ...string[]],
  options: { cwd?: string; env?: NodeJS.ProcessEnv; timeoutMs?: number } = {},
): Promise<number> {
  const { timeoutMs, ...rest } = options;
  const child = spawn(argv[0], argv.slice(1), {
    ...rest,
    stdio: "inherit",
    timeout: timeoutMs,
    killSignal: "SIGKILL",
  });
  // Ctrl-C reaches the child too, and this process waits for its end
  const ignore = (): void => {};
  process.on("SIGINT", ignore);
  return new Promise((resolve, reject) => {
    child.on("error", reject);
    child.on("close", (code) => {
      process.off("SIGINT", ignore);
      resolve(code ?? (child.killed ? 137 : 130));
    });
  });
}

/**
 * Starts a process that outlives this process, in its own session, with all output to `logFd`. The child does not keep
 * this process alive: a caller that waits on `exit` needs a timer.
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
  /** Resolves with the exit code or the signal. */
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

/** Finds a program on PATH and in the sbin directories, which a plain user's PATH lacks. */
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

/** Runs fsfreeze(8) on the filesystem of an open directory. Returns the exit code. */
export function spawnFreeze(what: "--freeze" | "--unfreeze", descriptor: number): Promise<number> {
  const child = spawn("fsfreeze", [what, "/proc/self/fd/3"], {
    // The program shares the caller's output, so a process that waits for the end of that output also waits for this
    // program.
    stdio: ["ignore", "inherit", "ignore", descriptor],
    timeout: 60_000,
    killSignal: "SIGKILL",
  });
  return new Promise((resolve) => {
    child.on("error", () => resolve(127));
    child.on("exit", (code) => resolve(code ?? 137));
  });
}

export interface FreezeGuard {
  /** Resolves to false if the filesystem could not be frozen. */
  frozen: Promise<boolean>;
  /** Thaws the filesystem. Resolves to false if the filesystem was not frozen the whole time. */
  thaw(): Promise<boolean>;
}

/** Starts the guard (`argv`) of a frozen filesystem. The open directory is its descriptor 3. */
export function startGuard(argv: readonly [string, ...string[]], directory: number): FreezeGuard {
  // The guard has its own session: a Ctrl-C ends the backup only, and the guard still thaws.
  const child = spawn(argv[0], argv.slice(1), {
    detached: true,
    stdio: ["pipe", "pipe", "ignore", directory],
  });
  const { stdin, stdout } = child;
  if (!stdin || !stdout) throw new Error("the guard has no pipes");
  stdin.on("error", () => {});
  // "close" also waits for an fsfreeze that a killed guard left behind: it may still freeze.
  const exit = new Promise<number>((resolve) => {
    child.on("error", () => resolve(127));
    child.on("close", (code) => resolve(code ?? 137));
  });
  const said = new Promise<boolean>((resolve) => stdout.once("data", () => resolve(true)));
  return {
    frozen: Promise.race([said, exit.then(() => false)]),
    thaw: async () => {
      stdin.end("thaw\n");
      const code = await exit;
      // A guard that was killed, or that could not thaw, left the filesystem frozen. A guard that exited with 2 froze
      // nothing.
      if (code === 1 || code > 2) await spawnFreeze("--unfreeze", directory);
      return code === 0;
    },
  };
}
