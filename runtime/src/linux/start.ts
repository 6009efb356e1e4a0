/** Starts a machine's processes under a shim and reports the result. */
import { spawn } from "node:child_process";
import { readFile } from "node:fs/promises";
import type { Readable } from "node:stream";
import { RuntimeError } from "../driver.ts";
import { run } from "../exec.ts";
import { lastError, SHIM_STATUS_FD, shimArgv } from "./argv.ts";

/**
 * Timeout of a start. A cold start takes 0.25 s on the reference host; twenty at once on two cores take a few seconds
 * each.
 */
const START_TIMEOUT_MS = 30_000;

export interface StartInput {
  shim: string;
  maskProcSysNet: boolean;
  argv: string[];
  log: string;
  /** Timeout of the start. Default 30 s. */
  timeoutMs?: number;
}

/**
 * Resolves when the engine has started the machine and exited. The shim stays with the machine, and the call does not
 * wait for its end.
 */
export async function startUnderShim(input: StartInput): Promise<void> {
  const timeoutMs = input.timeoutMs ?? START_TIMEOUT_MS;
  const [program = "", ...args] = shimArgv(input.shim, input, input.argv);
  const shim = spawn(program, args, { detached: true, stdio: ["ignore", "ignore", "ignore", "pipe"] });
  shim.unref();
  const status = await statusLine(shim.stdio[SHIM_STATUS_FD] as Readable, shim, timeoutMs);
  if (status === "exit 0") return;
  if (status === "timeout" && shim.pid !== undefined) killGroup(shim.pid);
  const said = lastError(await readFile(input.log, "utf8").catch(() => ""));
  const error = startError(status, input);
  throw new RuntimeError(error.kind, error.message, {
    details: { argv: input.argv, status, ...(said === undefined ? {} : { said }) },
  });
}

function statusLine(
  from: Readable,
  shim: { once(event: "error", listener: (error: Error) => void): unknown },
  timeoutMs: number,
): Promise<string> {
  return new Promise((resolve) => {
    let text = "";
    const deadline = setTimeout(() => finish("timeout"), timeoutMs);
    const finish = (line: string) => {
      clearTimeout(deadline);
      from.destroy();
      resolve(line);
    };
    shim.once("error", (error) => finish(`error shim ${error.message}`));
    from.on("data", (piece: Buffer) => (text += piece.toString()));
    from.once("error", () => finish("error shim status lost"));
    from.once("end", () => finish(text.trim() === "" ? "error shim ended early" : text.trim()));
  });
}

const ENOENT = 2;

function startError(
  status: string,
  { argv, timeoutMs = START_TIMEOUT_MS }: StartInput,
): { kind: "timeout" | "host_unsupported" | "failed"; message: string } {
  if (status === "timeout") {
    return { kind: "timeout", message: `the machine did not start within ${timeoutMs} ms` };
  }
  if (status === `error exec ${ENOENT}`)
    return { kind: "host_unsupported", message: `${argv[0]} is not installed` };
  // Exit code of nsenter and prlimit, as of a shell, when the program to execute does not exist.
  if (status === "exit 127")
    return {
      kind: "host_unsupported",
      message: "nsenter, prlimit or the program they start is not installed",
    };
  return { kind: "failed", message: "the machine could not be started" };
}

function killGroup(pid: number): void {
  try {
    process.kill(-pid, "SIGKILL");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
  }
}

/**
 * Returns whether runsc would treat any network namespace as the host's. runsc checks for
 * /proc/sys/net/core/rmem_default, which kernels since 6.17 show in every namespace.
 */
export async function needsProcSysNetMask(): Promise<boolean> {
  const probe = ["unshare", "--net", "test", "-e", "/proc/sys/net/core/rmem_default"];
  return (await run(probe, { okCodes: [0, 1] })).code === 0;
}
