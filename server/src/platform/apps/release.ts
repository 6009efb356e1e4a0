/**
 * A deployment's new instance, beside the one that serves: its machine, its process, whether it answers. Nothing leads
 * to it until `takeOver`. Whatever goes wrong before that leaves everything as it was, after `discard`.
 */
import { setTimeout as sleep } from "node:timers/promises";
import { DomainError } from "#lib/errors.ts";
import { newId } from "#lib/ids.ts";
import { reached } from "#lib/kill-points.ts";
import { placeCold } from "#machines/placement.ts";
import { withRoom } from "#machines/room.ts";
import { type AppSize, appSizes } from "../environments/sizes.ts";
import { variablesOf } from "../environments/variables.ts";
import type { Apps } from "./apps.ts";
import { letGo } from "./drain.ts";
import { sealEnv, type Variables } from "./environment.ts";
import type { End } from "./ends.ts";
import { AppUnhealthy } from "./errors.ts";
import { unhealthy } from "./last-words.ts";
import { listeningPorts } from "./listening.ts";
import { ask, isListening } from "./probe.ts";
import { Running } from "./running.ts";
import { findOwner, insertInstance } from "./store.ts";
import { takeOver } from "./switch.ts";
import type { RunSpec } from "./tables.ts";

export interface Release {
  environment: { id: string; host_label: string };
  deployment: { id: string };
  image: { imageId: string; run: { env: Variables; user: string | null; cwd: string } };
  argv: string[];
  port: number;
  healthCheckPath: string;
  /** Its variables; the image's own lie below them, `PORT` above. */
  env: Variables;
  isolation: RunSpec["isolation"];
  /** One of the sizes by its name. */
  size: string;
}

export interface Candidate {
  instanceId: string;
  /** Resolves to the health check's status. Rejects with `AppUnhealthy`, which has the exit reason and last output. */
  waitHealthy(signal: AbortSignal): Promise<number>;
  /** It serves when this settles, by the public way; the one before is let go of in the background. */
  takeOver(signal: AbortSignal): Promise<void>;
  /** Nothing of it is left. Safe to call again, and after a failure of any of the others. */
  discard(): Promise<void>;
}

const firstPauseMs = 25;
const lastPauseMs = 500;

/** Its process runs when this settles, or nothing of it is left. */
export async function release(
  apps: Apps,
  input: Release,
  { log, signal }: { log: (text: string) => void | Promise<void>; signal: AbortSignal },
): Promise<Candidate> {
  const { app } = apps;
  const { environment, image, isolation } = input;
  const id = newId("app_");
  const owner = await findOwner(app.db, environment.id);
  if (!owner) throw new Error("an environment that is deployed to has a project");
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
  const { running, reservation } = await withRoom(app, () =>
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
    await letGo(apps, running);
    throw explain(error);
  }
  running.supervise();
  await reached("app.released");
  return {
    instanceId: id,
    waitHealthy: (until) => waitHealthy(apps, running, until),
    takeOver: (until) => takeOver(apps, running, until),
    discard: async () => {
      if (running.state === "starting") await letGo(apps, running);
    },
  };
}

async function waitHealthy(apps: Apps, running: Running, signal: AbortSignal): Promise<number> {
  const { port, healthCheckPath: path } = running.row.run;
  const withinMs = apps.app.config.appStartSeconds * 1000;
  const late = AbortSignal.timeout(withinMs);
  const looking = new AbortController();
  const until = AbortSignal.any([signal, late, looking.signal]);
  const ended = running.ended.promise;
  const probed = probe(apps, running, until);
  try {
    const outcome = await Promise.race([probed, ended]);
    signal.throwIfAborted();
    if (typeof outcome === "object") throw await unhealthy(apps, running, whyEnded(outcome));
    if (typeof outcome === "number") return outcome;
    const seconds = withinMs / 1000;
    const why =
      outcome === "silent"
        ? `Nothing listened on port ${port} within ${seconds} s. ${await cureOf(running)}`
        : `GET ${path} on port ${port} ${outcome} until ${seconds} s were over; any status below 500 is well.`;
    throw await unhealthy(apps, running, why);
  } finally {
    looking.abort();
    await probed;
  }
}

/** An app that ignores `PORT` usually listens on its framework's default port. */
async function cureOf(running: Running): Promise<string> {
  const guest = running.guest();
  const ports = guest ? await listeningPorts(guest) : [];
  const [first] = ports;
  if (first === undefined) return "The app has to listen on 0.0.0.0:$PORT.";
  const found = ports.length === 1 ? `port ${first}` : `ports ${ports.join(", ")}`;
  return `The app listens on ${found} instead: let it listen on $PORT, or set the project's port to ${first}.`;
}

/** Returns a status below 500, `silent` if no process listened, or a text about the last response. */
async function probe(apps: Apps, running: Running, signal: AbortSignal): Promise<string | number> {
  const { port, healthCheckPath: path, hostname } = running.row.run;
  const host = apps.routes.hostOf(hostname);
  let outcome = "silent";
  for (let pauseMs = firstPauseMs; !signal.aborted; pauseMs = Math.min(lastPauseMs, pauseMs * 1.3)) {
    const guest = running.guest();
    if (guest && (await isListening(guest, port))) {
      const status = await ask(guest, { port, path, host }, signal);
      if (status !== undefined && status < 500) return status;
      if (!signal.aborted) outcome = status === undefined ? "did not answer" : `answered ${status}`;
    }
    await sleep(pauseMs, undefined, { signal, ref: false }).catch(() => {});
  }
  return outcome;
}

function whyEnded({ said }: End): string {
  return said.replace(/^It /, "The app ");
}

function explain(error: unknown): unknown {
  if (error instanceof DomainError) return error;
  const kind = (error as { kind?: string } | null)?.kind;
  if (kind === "exec_failed" || kind === "path_not_found" || kind === "not_directory") {
    return new AppUnhealthy(`${(error as Error).message}.`, { cause: error });
  }
  return error;
}
