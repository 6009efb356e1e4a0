/** `kontor dev-world`: a model, a tool and a webhook receiver on loopback, for trying Kontor without other services. */
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { startDevWorld } from "../../dev-world/server.ts";
import { Failure } from "../../lib/failure.ts";
import { inProduct } from "../../lib/places.ts";
import { startDetached } from "../../lib/run.ts";

export interface DevWorldOptions {
  port: string;
  detach?: boolean;
  stop?: boolean;
}

/** Timeout of a start. A start reads its sources in about a second; the rest of the time is for a busy host. */
const readyWithinMs = 60_000;
const endWithinMs = 10_000;

export async function devWorld(options: DevWorldOptions): Promise<void> {
  const port = Number(options.port);
  if (!Number.isInteger(port) || port < 1 || port > 65_535)
    throw new Failure("--port must be a whole number from 1 to 65535, such as 8090.");
  if (options.stop) return stop(port);
  if (options.detach) return detach(port);
  const world = await startDevWorld(port, (line) => process.stdout.write(`${line}\n`)).catch(
    (error: unknown) => {
      if ((error as NodeJS.ErrnoException).code !== "EADDRINUSE") throw error;
      throw new Failure(`Port ${port} of 127.0.0.1 is in use.`, {
        hint: "Stop a dev world with kontor dev-world --stop, or choose another port with --port.",
      });
    },
  );
  writePid(port);
  process.stdout.write(`${lines(world.url)}Ctrl-C stops it. Deliveries of webhooks appear here.\n`);
  await new Promise<void>((resolve) => {
    for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) process.once(signal, () => resolve());
  });
  await world.close();
  rmSync(pidFile(port), { force: true });
}

function lines(url: string): string {
  return `The dev world is up. Lines for your shell:
  model=${url}/v1      # an OpenAI-compatible model that repeats its input
  shop=${url}/shop     # an HTTP tool: GET /orders/{number}, POST /refunds
  hook=${url}/hooks    # a webhook receiver; GET ${url}/hooks lists the deliveries
Kontor refuses addresses on loopback until you allow them:
  KONTOR_ALLOW_PRIVATE_HOSTS=127.0.0.1 ./kontor restart
`;
}

async function detach(port: number): Promise<void> {
  if (findPid(port) !== undefined) {
    process.stdout.write(lines(`http://127.0.0.1:${port}`));
    return;
  }
  // The output goes to a file that is removed once the dev world runs.
  const directory = mkdtempSync(path.join(tmpdir(), "kontor-dev-world-"));
  const log = path.join(directory, "log");
  const fd = openSync(log, "a");
  try {
    const argv = [
      process.execPath,
      inProduct("cli/src/main.ts"),
      "dev-world",
      "--port",
      String(port),
    ] as const;
    const started = startDetached(argv, fd, process.env);
    let ended = false;
    void started.exit.then(() => (ended = true));
    const deadline = Date.now() + readyWithinMs;
    while (findPid(port) !== started.pid) {
      if (ended || Date.now() > deadline)
        throw new Failure("The dev world did not start.", { hint: readFileSync(log, "utf8").trim() });
      await delay(50);
    }
  } finally {
    closeSync(fd);
    rmSync(directory, { recursive: true });
  }
  process.stdout.write(`${lines(`http://127.0.0.1:${port}`)}Stop it with: ./kontor dev-world --stop\n`);
}

async function stop(port: number): Promise<void> {
  const pid = findPid(port);
  if (pid === undefined) throw new Failure(`No dev world runs on port ${port}.`);
  process.kill(pid, "SIGTERM");
  const deadline = Date.now() + endWithinMs;
  while (findPid(port) !== undefined) {
    if (Date.now() > deadline) throw new Failure(`The dev world (pid ${pid}) does not end.`);
    await delay(50);
  }
  process.stdout.write("The dev world is stopped.\n");
}

function pidFile(port: number): string {
  return path.join(tmpdir(), `kontor-dev-world-${process.getuid?.() ?? 0}-${port}.pid`);
}

function writePid(port: number): void {
  rmSync(pidFile(port), { force: true });
  // `wx` does not follow a symlink that another user of this host made.
  writeFileSync(pidFile(port), String(process.pid), { flag: "wx", mode: 0o600 });
}

/**
 * Returns the pid of the dev world on a port. Another program may have the pid of a dev world that ended, so its
 * command line is compared.
 */
function findPid(port: number): number | undefined {
  try {
    const pid = Number(readFileSync(pidFile(port), "utf8"));
    if (!Number.isInteger(pid) || pid < 1) return undefined;
    const argv = readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0");
    return argv.includes("dev-world") ? pid : undefined;
  } catch {
    return undefined;
  }
}
