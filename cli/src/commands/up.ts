/**
 * `kontor up`: set-up, server, first template, proof, banner. Repeating it is safe: existing parts are kept. If a
 * server already serves the data directory, the command prints its address and exits with 0.
 */
import { lookup } from "node:dns/promises";
import { setTimeout as delay } from "node:timers/promises";
import { type Config, describeConfig } from "@kontor/server/config.ts";
import { Failure } from "../lib/failure.ts";
import { asRoot, isRoot } from "../lib/places.ts";
import { seconds, startStep } from "../lib/steps-view.ts";
import { banner } from "../serve/banner.ts";
import { LogTail, worthShowing } from "../serve/log-tail.ts";
import { isPortFree, portOwner } from "../serve/port.ts";
import { askToPrepare, waitForImages } from "../serve/prepare-images.ts";
import { prove } from "../serve/prove.ts";
import { findCaFile, findRunning, logFile, readOperator, type RunningServer } from "../serve/server-file.ts";
import {
  afterGraceMs,
  startServer,
  stopServer,
  waitForTemplate,
  waitUntilReady,
  type StartedServer,
} from "../serve/start.ts";
import { aptStep } from "../setup/apt.ts";
import { hostLimitsStep } from "../setup/host-limits.ts";
import { nativeStep } from "../setup/native.ts";
import { serverPackages } from "../setup/packages.ts";
import { setUp } from "../setup/setup.ts";
import { readConfig } from "./config.ts";

const prepareVariable = "KONTOR_PREPARE_IMAGES";

export interface UpOptions {
  detach?: boolean;
  port?: string;
  data?: string;
  /** Groups of images to prepare, in the form of the setting `prepare_images`. */
  prepare?: string;
}

export async function up(options: UpOptions): Promise<void> {
  const startedAt = Date.now();
  // The server inherits its settings from this environment.
  if (options.prepare !== undefined) process.env[prepareVariable] = options.prepare;
  const config = readConfig(options);
  const data = config.dataDir;
  const running = findRunning(data);
  if (running) return alreadyRunning(running, data, options);

  await setUp([aptStep(serverPackages), nativeStep, hostLimitsStep()]);
  if (!isRoot()) throw new Failure("Booting machines needs root.", { hint: `Run: ${asRoot()}` });
  await refuseTakenPorts(config);

  const firstStart = readOperator(data) === undefined;
  let prepares = options.prepare !== undefined;
  if (firstStart && !isPrepareSet(config) && process.stdin.isTTY && process.stderr.isTTY) {
    prepares = await askToPrepare();
    if (prepares) process.env[prepareVariable] = "all";
  }
  const view = startStep("Server");
  const started = startServer(
    data,
    options.port === undefined ? undefined : config.port,
    await doors(config),
  );
  const signals = options.detach ? undefined : passSignalsOn(started, config);
  const server = await orStop(started, view, () => waitUntilReady(started, data, view));
  view.done(`${server.base_url} (pid ${server.pid})`);

  await proveItself(server, data, started).catch(async (error: unknown) => {
    // A server on this terminal is stopped. A detached server keeps running, so that its log and API stay readable.
    if (!options.detach) await stopServer(server.pid, config.shutdownGraceSeconds * 1000 + afterGraceMs);
    throw error;
  });
  // With only the setting, images are prepared in the background.
  if (prepares) await waitForImages(server.base_url);
  process.stdout.write(
    banner({
      data,
      baseUrl: server.base_url,
      operator: readOperator(data),
      firstStart,
      log: started.log,
      caFile: findCaFile(data),
    }),
  );
  process.stderr.write(`Ready after ${seconds(Date.now() - startedAt)}.`);
  if (options.detach) {
    process.stderr.write(` Stop it with: kontor down${options.data ? ` --data ${data}` : ""}\n`);
    return;
  }
  process.stderr.write(" Ctrl-C drains and stops the server.\n");
  await watch(started);
  signals?.done();
}

function isPrepareSet(config: Config): boolean {
  return describeConfig(config).some(({ name, source }) => name === "prepare_images" && source !== "default");
}

/** Returns the addresses to listen on, plain HTTP first. Names are resolved only here. */
async function doors({ host, port, tlsPort, tlsMode }: Config): Promise<string[]> {
  const { address, family } = await lookup(host);
  const at = family === 6 ? `[${address}]` : address;
  return [port, ...(tlsMode === "off" ? [] : [tlsPort])].map((number) => `${at}:${number}`);
}

function alreadyRunning(running: RunningServer, data: string, options: UpOptions): void {
  if (options.port !== undefined && Number(options.port) !== running.port) {
    throw new Failure(`Kontor already serves ${data} on port ${running.port} (pid ${running.pid}).`, {
      hint: "Stop it with kontor down, or choose another data directory with --data.",
    });
  }
  if (options.prepare !== undefined) {
    throw new Failure(`Kontor already serves ${data} (pid ${running.pid}).`, {
      hint: `Run ${prepareVariable}=${options.prepare} kontor restart to prepare images in the running installation.`,
    });
  }
  process.stdout.write(`Kontor already serves ${data} (pid ${running.pid}).\n`);
  process.stdout.write(
    banner({
      data,
      baseUrl: running.base_url,
      operator: readOperator(data),
      firstStart: false,
      log: logFile(data),
      caFile: findCaFile(data),
    }),
  );
}

async function refuseTakenPorts({ port, tlsPort, tlsMode, host }: Config): Promise<void> {
  await refuseTaken(port, host, "kontor up --port N (or KONTOR_PORT, or port in kontor.toml)");
  if (tlsMode === "off") return;
  await refuseTaken(tlsPort, host, "KONTOR_TLS_PORT, or tls_port in kontor.toml");
}

async function refuseTaken(port: number, host: string, how: string): Promise<void> {
  if (port === 0 || (await isPortFree(port, host))) return;
  const owner = portOwner(port);
  throw new Failure(`Port ${port} on ${host} is taken${owner ? ` by ${owner}` : ""}.`, {
    hint: `Choose another: ${how}.`,
  });
}

/** Stops the server if `work` fails, so that a start that fails early leaves no server behind. */
async function orStop<T>(
  started: StartedServer,
  view: { fail(detail: string): void },
  act: () => Promise<T>,
): Promise<T> {
  try {
    return await act();
  } catch (error) {
    view.fail(error instanceof Error ? error.message : String(error));
    try {
      process.kill(started.process.pid, "SIGTERM");
    } catch {
      // the process has ended
    }
    throw error;
  }
}

async function proveItself(server: RunningServer, data: string, started: StartedServer): Promise<void> {
  const operator = readOperator(data);
  if (!operator) throw new Failure(`the server wrote no credentials into ${data}`);
  const template = startStep("Template debian-12");
  try {
    const ready = await waitForTemplate(server.base_url, "debian-12", template);
    template.done(ready?.image?.substituted ? "substituted base" : "");
  } catch (error) {
    template.fail((error as Error).message);
    throw error;
  }
  const view = startStep("Prove the start: run code in a sandbox");
  try {
    const proof = await prove({ baseUrl: server.base_url, token: operator.token });
    view.done(
      `create ${Math.round(proof.createMs)} ms, exec ${Math.round(proof.execMs)} ms, delete ${Math.round(proof.deleteMs)} ms, kernel ${proof.kernel}`,
    );
  } catch (error) {
    view.fail((error as Error).message);
    throw new Failure("The server runs, but a sandbox cannot run code.", {
      hint: `See ${started.log} and kontor doctor; stop the server with kontor down.`,
    });
  }
}

/** Forwards signals to the server. The first signal drains and stops it. The second signal kills it. */
function passSignalsOn(started: StartedServer, config: Config): { done(): void } {
  let asked = 0;
  const pass = (): void => {
    asked += 1;
    const word =
      asked === 1 ? `draining, at most ${config.shutdownGraceSeconds} s; again to end at once` : "ending";
    process.stderr.write(`\n· ${word} …\n`);
    try {
      process.kill(started.process.pid, "SIGTERM");
    } catch {
      // the process has ended; watch() reports it
    }
  };
  const signals = ["SIGINT", "SIGTERM", "SIGHUP"] as const;
  for (const signal of signals) process.on(signal, pass);
  return { done: () => signals.forEach((signal) => process.off(signal, pass)) };
}

/** Waits until the server ends, and prints the warnings and errors that it logs. */
async function watch(started: StartedServer): Promise<void> {
  const tail = new LogTail(started.log, started.logOffset);
  tail.lines();
  const show = (): void => {
    for (const line of tail.lines()) {
      const shown = worthShowing(line);
      if (shown) process.stderr.write(`${shown}\n`);
    }
  };
  let ended: string | undefined;
  const end = started.process.exit.then((how) => (ended = how));
  while (!ended) {
    await Promise.race([end, delay(250)]);
    show();
  }
  tail.close();
  if (ended !== "exit code 0")
    throw new Failure(`The server ended: ${ended}.`, { hint: `See ${started.log}` });
  process.stderr.write("✓ stopped\n");
}
