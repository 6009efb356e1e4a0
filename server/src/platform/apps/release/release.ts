/**
 * Releases a deployment: starts a machine and the app's process beside the serving instance, and checks its health. The
 * instance gets no request before `takeOver`. After a failure, `discard` restores the earlier state.
 */
import { setTimeout as sleep } from "node:timers/promises";
import { DomainError } from "#lib/errors.ts";
import { newId } from "#lib/ids.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { ProgressDeadline } from "#lib/concurrency/progress-deadline.ts";
import { placeCold } from "#machines/placement/placement.ts";
import { withReclaim } from "#machines/placement/reclaim.ts";
import { type AppSize, appSizes } from "#platform/environments/sizes.ts";
import { variablesOf } from "#platform/environments/variables.ts";
import type { AppsContext } from "../apps-context.ts";
import { removeInstance } from "./drain.ts";
import { sealEnv, type Variables } from "../environment.ts";
import type { End } from "../output/exit-reason.ts";
import { AppUnhealthy } from "../errors.ts";
import { unhealthyError } from "../output/last-output.ts";
import { listeningPorts } from "./listening.ts";
import { requestStatus, isListening } from "./probe.ts";
import { Running } from "../running/app-instance.ts";
import { findOwner, insertInstance } from "../store.ts";
import { takeOver } from "./switch.ts";
import type { RunSpec } from "../tables.ts";
import { WorkSigns } from "../running/work-signs.ts";

export interface Release {
  environment: { id: string; host_label: string };
  deployment: { id: string };
  image: { imageId: string; run: { env: Variables; user: string | null; cwd: string } };
  argv: string[];
  port: number;
  healthCheckPath: string;
  /** Variables of the environment. These variables override those of the image, and `PORT` overrides both. */
  env: Variables;
  isolation: RunSpec["isolation"];
  /** Name of the app's size. */
  size: string;
}

type Log = (text: string) => void | Promise<void>;

export interface Candidate {
  instanceId: string;
  /**
   * Resolves to the status of the health check. Rejects with `AppUnhealthy`, which contains the exit reason and last
   * output.
   */
  waitHealthy(signal: AbortSignal, log?: Log): Promise<number>;
  /**
   * Switches the address to this instance, and checks it through the public listener. The earlier instance is drained
   * in the background.
   */
  takeOver(signal: AbortSignal): Promise<void>;
  /** Removes the instance. May be repeated, and may follow a failure of the other functions. */
  discard(): Promise<void>;
}

/** Longest start, as a multiple of the longest time without progress. */
const wholeFactor = 5;
/**
 * Timeout of the first request, and the longest. Each next request gets twice the time, because a busy host is slow.
 */
const firstAnswerMs = 5_000;
const lastAnswerMs = 60_000;
const firstPauseMs = 25;
const lastPauseMs = 500;

/** Starts the instance. Resolves when its process runs; after a failure, the machine and the row are removed. */
export async function release(
  apps: AppsContext,
  input: Release,
  { log, signal }: { log: (text: string) => void | Promise<void>; signal: AbortSignal },
): Promise<Candidate> {
  const { app } = apps;
  const { environment, image, isolation } = input;
  const id = newId("app_");
  const owner = await findOwner(app.db, environment.id);
  if (!owner) throw new Error("a deployed environment has a project");
  const run: RunSpec = {
    image: image.imageId,
    argv: input.argv,
    cwd: image.run.cwd,
    user: image.run.user,
    port: input.port,
    healthCheckPath: input.healthCheckPath,
    isolation,
    size: appSizes[input.size as AppSize],
    hostname: environment.host_label,
    workspaceId: owner.workspace_id,
  };
  const variables = await variablesOf(app, app.db, environment.id);
  const { running, reservation } = await withReclaim(app, () =>
    app.db.transaction().execute(async (tx) => {
      const row = await insertInstance(tx, {
        id,
        environment_id: environment.id,
        deployment_id: input.deployment.id,
        run,
        env_sealed: sealEnv(app, id, { image: image.run.env, given: input.env, variables }),
        created_at: app.clock.now(),
      });
      const made = new Running(apps, row);
      return { running: made, reservation: await placeCold(app, tx, made.request()) };
    }),
  );
  apps.running.set(id, running);
  try {
    await log(`Starting a machine (${isolation}) with ${run.size.memoryMb} MB and ${run.size.cpu} CPU.`);
    await running.startMachine(reservation);
    signal.throwIfAborted();
    await log(`Starting ${input.argv.join(" ")}`);
    await running.startProcess();
  } catch (error) {
    await removeInstance(apps, running);
    throw explain(error);
  }
  running.supervise();
  await passKillPoint("app.released");
  return {
    instanceId: id,
    waitHealthy: (until, writeLog = () => {}) => waitHealthy(apps, running, { log: writeLog, signal: until }),
    takeOver: (until) => takeOver(apps, running, until),
    discard: async () => {
      if (running.state === "starting") await removeInstance(apps, running);
    },
  };
}

async function waitHealthy(
  apps: AppsContext,
  running: Running,
  { log, signal }: { log: Log; signal: AbortSignal },
): Promise<number> {
  const { port, healthCheckPath: path } = running.row.run;
  const quietMs = apps.app.config.appStartSeconds * 1000;
  const seen: ProbeState = { outcome: "silent" };
  using deadline = new ProgressDeadline({
    quietMs,
    wholeMs: quietMs * wholeFactor,
    hasProgressed: progressOf(apps, running, seen),
  });
  const looking = new AbortController();
  const until = AbortSignal.any([signal, deadline.signal, looking.signal]);
  const ended = running.ended.promise;
  const onChange = async (outcome: string) => {
    deadline.progressed();
    await log(
      outcome === "unanswered"
        ? `The app listens on port ${port}.\n`
        : `GET ${path} on port ${port} responds with ${outcome}.\n`,
    );
  };
  const probed = probe(apps, running, { seen, onChange, signal: until });
  try {
    const outcome = await Promise.race([probed, ended]);
    signal.throwIfAborted();
    if (typeof outcome === "object") throw await unhealthyError(apps, running, whyEnded(outcome));
    if (outcome !== undefined) return outcome;
    throw await unhealthyError(apps, running, await whyLate(running, seen, deadline.seconds));
  } finally {
    looking.abort();
    await probed;
  }
}

/**
 * Result of the last check. `silent`: nothing listens on the port. `unanswered`: no response to a request. Otherwise
 * the status.
 */
interface ProbeState {
  outcome: string;
}

/**
 * Returns a function that detects progress of a start. A starting app uses CPU time or writes output. An app that
 * listens on another port has finished its start. Once a request is accepted, only CPU time counts, because the app may
 * work on the response.
 */
function progressOf({ app }: AppsContext, running: Running, seen: ProbeState): () => Promise<boolean> {
  const signs = new WorkSigns(app, running);
  return async () => {
    const { usedCpu, wrote } = await signs.read();
    if (seen.outcome === "unanswered") return usedCpu;
    if (seen.outcome !== "silent" || !(usedCpu || wrote)) return false;
    const guest = running.guest();
    return guest !== null && (await listeningPorts(guest)).length === 0;
  };
}

async function whyLate(running: Running, { outcome }: ProbeState, seconds: number): Promise<string> {
  const { port, healthCheckPath: path } = running.row.run;
  if (outcome === "silent")
    return `Nothing listened on port ${port} within ${seconds} s. ${await cureOf(running)}`;
  const last = outcome === "unanswered" ? "did not respond" : `responded with ${outcome}`;
  return `GET ${path} on port ${port} ${last} within ${seconds} s; any status below 500 is healthy.`;
}

/**
 * Returns the fix for an app that does not listen on `PORT`. Such an app usually listens on its framework's default
 * port.
 */
async function cureOf(running: Running): Promise<string> {
  const guest = running.guest();
  const ports = guest ? await listeningPorts(guest) : [];
  const [first] = ports;
  if (first === undefined) return "The app has to listen on 0.0.0.0:$PORT.";
  const found = ports.length === 1 ? `port ${first}` : `ports ${ports.join(", ")}`;
  return `The app listens on ${found} instead: let it listen on $PORT, or set the project's port to ${first}.`;
}

/**
 * Repeats the health check. Returns a status below 500, or undefined if the signal aborts first; `seen` then has the
 * last outcome.
 */
async function probe(
  apps: AppsContext,
  running: Running,
  {
    seen,
    onChange,
    signal,
  }: { seen: ProbeState; onChange: (outcome: string) => Promise<void>; signal: AbortSignal },
): Promise<number | undefined> {
  const { port, healthCheckPath: path, hostname } = running.row.run;
  const host = apps.routes.hostOf(hostname);
  const note = async (outcome: string) => {
    if (signal.aborted || seen.outcome === outcome) return;
    seen.outcome = outcome;
    await onChange(outcome).catch(() => {});
  };
  let withinMs = firstAnswerMs;
  for (let pauseMs = firstPauseMs; !signal.aborted; pauseMs = Math.min(lastPauseMs, pauseMs * 1.3)) {
    const guest = running.guest();
    if (guest && (await isListening(guest, port))) {
      if (seen.outcome === "silent") await note("unanswered");
      const status = await requestStatus(guest, { port, path, host, withinMs }, signal);
      if (status !== undefined && status < 500) return status;
      if (status === undefined) withinMs = Math.min(lastAnswerMs, withinMs * 2);
      else await note(String(status));
    }
    await sleep(pauseMs, undefined, { signal, ref: false }).catch(() => {});
  }
  return undefined;
}

function whyEnded({ message }: End): string {
  return message.replace(/^It /, "The app ");
}

function explain(error: unknown): unknown {
  if (error instanceof DomainError) return error;
  const kind = (error as { kind?: string } | null)?.kind;
  if (kind === "exec_failed" || kind === "path_not_found" || kind === "not_directory") {
    return new AppUnhealthy(`${(error as Error).message}.`, { cause: error });
  }
  return error;
}
