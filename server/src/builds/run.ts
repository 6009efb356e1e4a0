/**
 * Runs builds, up to the configured number at a time. A build is a row until it ends. The machine, log and unfinished
 * image of a build belong to this process; the next process finds and removes them. A graceful shutdown puts running
 * builds back into the queue, and a killed server leaves them to the next one. A build during which three servers died
 * is the likely cause, and is not retried.
 */
import type { GuestProcess, MachineExit, ProcessExit } from "@kontor/runtime/driver.ts";
import type { App } from "#app.ts";
import { addJob, type Tasks } from "#jobs/jobs.ts";
import { DomainError } from "#lib/errors.ts";
import { RecentOwners } from "#lib/concurrency/fair-queue.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { startReserved } from "#machines/placement/start-reserved.ts";
import { networkEnv } from "#machines/placement/environment.ts";
import type { Guest } from "#machines/host/guest.ts";
import type { HostImage } from "#machines/host/host.ts";
import type { MachineOwner } from "#machines/machine-owner.ts";
import { place, release, releaseAll } from "#machines/placement/placement.ts";
import { orderFor } from "#machines/placement/order.ts";
import { withReclaim } from "#machines/placement/reclaim.ts";
import { type BuildEnd, type BuildOwners, runTask, sweepImages } from "./builds.ts";
import { BuildFailed, BuildDropped, sentence } from "./failures.ts";
import { BuildLog } from "./log.ts";
import { buildDockerfile, inspectImage } from "./dockerfile.ts";
import {
  type BuildRow,
  endBuild,
  findBuild,
  lockBuild,
  interruptedBuilds,
  saveStep,
  requeueUncounted,
  requeue,
  takeNext,
} from "./store.ts";

type Needs = Pick<App, "db" | "machines" | "secrets" | "config" | "clock" | "log">;

const attemptsMax = 3;
/** Retry interval while the host has no capacity, and the time after which a waiting build fails. */
const noRoomRetryMs = 5_000;
const noRoomForMs = 60 * 60_000;
/** Longest capture of a machine's files. A capture takes seconds, or minutes for tens of gigabytes on a slow disk. */
const captureMaxMs = 10 * 60_000;
/** Fraction of the build's time that the capture gets at least, even if the steps used all of it. */
const captureShare = 1 / 2;
/**
 * Time in which the guest ends an overdue step before the host does. The time is also limited to `graceShare` of the
 * build's time.
 */
const graceMaxMs = 10_000;
const graceShare = 1 / 6;
const sweepEveryMs = 15_000;
/** Time after a failed call within which the machine's exit is reported. */
const exitWithinMs = 6_000;
const endedKinds = new Set(["machine_died", "not_running", "not_found"]);
/** Characters of a command that the reason of a failure shows. */
const commandChars = 200;

/** Thrown when the server stops. */
class Interruption extends Error {}

interface Running {
  exit: PromiseWithResolvers<MachineExit | null>;
}

export class Builds {
  readonly #app: Needs;
  readonly #owners: BuildOwners;
  readonly #running = new Map<string, Running>();
  readonly #recent = new RecentOwners();
  #sweeping: NodeJS.Timeout | undefined;

  constructor(app: Needs, owners: BuildOwners) {
    this.#app = app;
    this.#owners = owners;
  }

  /** Callbacks of the machine layer for machines of builds. */
  readonly machineOwner: MachineOwner = {
    // Machines of builds from an earlier server are removed, because their steps cannot continue.
    onServerStart: async () => {
      await releaseAll(this.#app, "build");
      await this.#recover();
      await addJob(this.#app.db, runTask, {});
    },
    ended: async (id, { exit }) => this.#running.get(id)?.exit.resolve(exit),
  };

  readonly tasks: Tasks = { [runTask]: (_: unknown, { signal }) => this.run(signal) };

  /** Runs queued builds until the queue is empty or the limit of parallel builds is reached. */
  async run(signal: AbortSignal): Promise<void> {
    const { db, config, clock, machines } = this.#app;
    await this.#recover();
    while (!signal.aborted) {
      const queue = {
        hostId: machines.host.id,
        atOnce: config.buildConcurrency,
        recent: this.#recent.list(),
      };
      const next = await takeNext(db, queue, clock.now());
      if (!next) return;
      const mayGoOn = await this.#runBuild(next.build, signal).finally(() =>
        this.#recent.recordEnd(next.payerId),
      );
      if (!mayGoOn) return;
    }
  }

  /** Removes unused images now and at an interval, because the last machine of an image may end at any time. */
  start(): void {
    const sweep = () =>
      sweepImages(this.#app).catch((error: unknown) =>
        this.#app.log.warn({ err: error }, "sweeping images failed; a later sweep retries"),
      );
    void sweep();
    this.#sweeping = setInterval(sweep, sweepEveryMs).unref();
  }

  stop(): void {
    clearInterval(this.#sweeping);
  }

  /** Queues interrupted builds again. Fails a build that was interrupted too often. */
  async #recover(): Promise<void> {
    for (const { id, owner_kind, dockerfile, attempts } of await interruptedBuilds(
      this.#app.db,
      this.#app.machines.host.id,
    )) {
      if (this.#running.has(id)) continue;
      if (attempts < attemptsMax) await requeue(this.#app.db, id);
      else {
        const error = `The server ended ${attempts} times during this build; it is not retried.`;
        await this.#end({ id, owner_kind, dockerfile }, { status: "failed", error });
      }
    }
  }

  /** Runs a build. Returns false if no further build should start now. */
  async #runBuild(build: BuildRow, signal: AbortSignal): Promise<boolean> {
    const running: Running = { exit: Promise.withResolvers() };
    this.#running.set(build.id, running);
    try {
      const made =
        build.dockerfile === null
          ? { image: await this.#build(build, running, signal) }
          : await this.#buildDockerfile(build, build.dockerfile, running, signal);
      await passKillPoint("build.captured");
      await this.#end(build, { status: "succeeded", ...made });
      return true;
    } catch (error) {
      return await this.#handleFailure(build, error);
    } finally {
      this.#running.delete(build.id);
    }
  }

  async #handleFailure(build: BuildRow, error: unknown): Promise<boolean> {
    const { db, clock, log } = this.#app;
    await this.#releaseMachine(build.id);
    if (error instanceof Interruption) {
      await requeueUncounted(db, build.id);
      return false;
    }
    if (error instanceof DomainError && error.code === "no_capacity") {
      const now = clock.now().getTime();
      if (now - build.created_at.getTime() < noRoomForMs) {
        await requeueUncounted(db, build.id);
        const runAt = new Date(now + noRoomRetryMs);
        await addJob(db, runTask, {}, { key: `${runTask}:later`, runAt });
        return false;
      }
    }
    if (error instanceof BuildDropped) return true;
    const isOurs = !(error instanceof BuildFailed) && !(error instanceof DomainError);
    if (isOurs) log.error({ build: build.id, err: error }, "a build failed because of this server");
    await this.#end(build, {
      status: "failed",
      error: isOurs ? "The build failed because of an error of the server." : (error as Error).message,
    });
    return true;
  }

  /** Commits the end of a build: its row, its owner's record and the removal of its machine, in one transaction. */
  async #end(build: Pick<BuildRow, "id" | "owner_kind" | "dockerfile">, end: BuildEnd): Promise<void> {
    const { db, machines, clock } = this.#app;
    const ended = await db.transaction().execute(async (tx) => {
      const machine = await release(tx, { ownerKind: "build", ownerId: build.id });
      if (!(await endBuild(tx, build.id, { ...toRow(end), at: clock.now() }))) return { machine };
      await this.#owners[build.owner_kind].ended(tx, build.id, end);
      return { machine, isWanted: true };
    });
    if (ended.machine) machines.destroyLater(ended.machine);
    if (ended.isWanted || end.status !== "succeeded") return;
    // The image of a Dockerfile is removed by the next sweep, once no machine uses it.
    if (build.dockerfile === null) await machines.host.removeImage(build.id);
  }

  async #releaseMachine(id: string): Promise<void> {
    const { db, machines } = this.#app;
    const machine = await db.transaction().execute((tx) => release(tx, { ownerKind: "build", ownerId: id }));
    if (machine) machines.destroyLater(machine);
  }

  async #build(build: BuildRow, running: Running, signal: AbortSignal): Promise<HostImage> {
    const { db, machines, config } = this.#app;
    const base = await machines.images.ensure(build.base).catch((error: unknown) => {
      throw new BuildFailed(`The base ${build.base} could not be built: ${(error as Error).message}`);
    });
    // An earlier attempt may have left an image with this id.
    await machines.host.removeImage(build.id);
    const { order, guest } = await this.#boot(build, base);
    await passKillPoint("build.started");
    const log = new BuildLog(this.#app, build.id);
    const limitMs = config.buildTimeoutMinutes * 60_000;
    const deadline = performance.now() + limitMs;
    const lastMoment = deadline + Math.min(graceMaxMs, limitMs * graceShare);
    try {
      for (const [index, command] of build.steps.entries()) {
        const step = { number: index + 1, of: build.steps.length, command };
        if (!(await saveStep(db, build.id, step.number))) throw new BuildDropped();
        await this.#step(guest, step, { log, deadline, lastMoment, signal, machine: order.machine });
      }
      await log.flush();
      await passKillPoint("build.stepped");
      const timeoutMs = Math.min(
        captureMaxMs,
        Math.max(deadline - performance.now(), limitMs * captureShare),
      );
      return await machines.host.captureImage(order, build.id, { timeoutMs: Math.ceil(timeoutMs) });
    } catch (error) {
      await log.flush();
      throw await this.#explain(build.id, error, running);
    }
  }

  /**
   * Builds a Dockerfile. The enclosed builder makes the image. A machine then boots from it, so every ready template is
   * known to boot.
   */
  async #buildDockerfile(build: BuildRow, dockerfile: string, running: Running, signal: AbortSignal) {
    const { machines } = this.#app;
    // An earlier attempt may have left an image with this id.
    await machines.host.removeAppImage(build.id);
    const log = new BuildLog(this.#app, build.id);
    try {
      const { sizeBytes, defaults } = await buildDockerfile(this.#app, build, dockerfile, { log, signal });
      await passKillPoint("build.stepped");
      signal.throwIfAborted();
      const image = { id: build.id, sizeBytes, contents: {}, substituted: false, substitute: null };
      const { guest } = await this.#boot(build, image);
      await passKillPoint("build.started");
      await inspectImage(guest, defaults, log, signal);
      await log.flush();
      return { image, defaults };
    } catch (error) {
      await log.flush();
      if (signal.aborted) throw new Interruption();
      throw await this.#explain(build.id, error, running);
    }
  }

  async #boot(build: BuildRow, base: HostImage) {
    const { db, machines, config } = this.#app;
    const env = {
      HOME: "/root",
      // Without this variable, apt would wait for input until the deadline.
      DEBIAN_FRONTEND: "noninteractive",
      ...networkEnv(build.network),
    };
    const reservation = await withReclaim(this.#app, () =>
      db.transaction().execute(async (tx) => {
        if (!(await lockBuild(tx, build.id))) throw new BuildDropped();
        return place(this.#app, tx, {
          ownerKind: "build",
          ownerId: build.id,
          shape: {
            poolKey: "",
            template: build.base,
            resources: {
              vcpus: config.buildCpus,
              memoryBytes: config.buildMemoryMb * 1024 ** 2,
              diskBytes: config.machineDiskGb * 1024 ** 3,
              maxProcesses: 1024,
            },
          },
          image: base,
          network: build.network,
          hostname: "build",
          env,
        });
      }),
    );
    await startReserved(this.#app, reservation);
    return { order: orderFor(reservation.row), guest: machines.connect(reservation.row.id) };
  }

  /** Runs a step. Rejects with a `BuildFailed` that names the step and contains its last output. */
  async #step(
    guest: Guest,
    step: { number: number; of: number; command: string },
    context: {
      log: BuildLog;
      deadline: number;
      lastMoment: number;
      signal: AbortSignal;
      machine: string;
    },
  ): Promise<void> {
    const { log, deadline, lastMoment, signal } = context;
    const name = `Step ${step.number} of ${step.of}`;
    await log.begin(step.number, `${name}: ${step.command}\n`);
    const fail = (how: string, more = "") =>
      new BuildFailed(`${name} ${how}: ${shorten(step.command)}.${more}${lastOutput(log)}`);
    const minutes = this.#app.config.buildTimeoutMinutes;
    const overtime = `was still running when the build's ${minutes} minutes were over`;
    // Steps run as root beside PID 1, so the guest may be busy or hostile. Neither the deadline nor a shutdown waits
    // for the guest.
    const over = Promise.withResolvers<never>();
    over.promise.catch(() => {});
    const timer = setTimeout(() => over.reject(fail(overtime)), lastMoment - performance.now());
    const stop = () => over.reject(new Interruption());
    signal.addEventListener("abort", stop, { once: true });
    if (signal.aborted) stop();
    const spawned = guest.spawn({
      argv: ["/bin/sh", "-c", step.command],
      cwd: "/workspace",
      timeoutMs: Math.max(1, Math.ceil(deadline - performance.now())),
      onDisconnect: "kill",
    });
    try {
      const exit = await Promise.race([spawned.then((child) => followStep(child, log)), over.promise]);
      if (exit.code === 0) return;
      if (exit.outOfMemory) throw this.#outOfMemory();
      const how = exit.timedOut
        ? overtime
        : exit.signal === null
          ? `failed with exit code ${exit.code}`
          : `was ended by signal ${exit.signal}`;
      throw fail(how, (await this.#isDiskFull(context.machine)) ? " The build's disk is full." : "");
    } catch (error) {
      throw signal.aborted ? new Interruption() : error;
    } finally {
      clearTimeout(timer);
      signal.removeEventListener("abort", stop);
      spawned.then(
        (child) => child.close(),
        () => {},
      );
    }
  }

  #outOfMemory(): BuildFailed {
    return new BuildFailed(`The build ran out of memory: it may use ${this.#app.config.buildMemoryMb} MB.`);
  }

  async #isDiskFull(machine: string): Promise<boolean> {
    const stats = await this.#app.machines.host.stats(machine).catch(() => undefined);
    return stats !== undefined && stats.diskBytes > this.#app.config.machineDiskGb * 1024 ** 3 * 0.99;
  }

  /** Returns the error for the owner. If the machine's exit caused the failure, the error names the exit. */
  async #explain(id: string, error: unknown, { exit }: Running): Promise<unknown> {
    const kind = (error as { kind?: string } | null)?.kind;
    if (kind === undefined) return error;
    if (kind === "image_failed" || kind === "timeout") return new BuildFailed(sentence(error));
    if (!endedKinds.has(kind)) {
      return new BuildFailed(`The steps damaged the machine: ${sentence(error)}`);
    }
    // The build was dropped with its machine, so no reason is stored.
    if (!(await findBuild(this.#app.db, id))) return new BuildDropped();
    const ended = await Promise.race([exit.promise, after(exitWithinMs)]);
    if (ended?.reason === "out_of_memory") {
      return this.#outOfMemory();
    }
    return new BuildFailed(`The build's machine ended: ${sentence(error)}`);
  }
}

async function followStep(child: GuestProcess, log: BuildLog): Promise<ProcessExit> {
  child.endStdin();
  for await (const { data } of child.output) await log.write(data);
  return child.exit;
}

function toRow(end: BuildEnd): { status: BuildEnd["status"]; error: string | null } {
  return { status: end.status, error: end.status === "failed" ? end.error : null };
}

function shorten(command: string): string {
  const [line = ""] = command.trim().split("\n");
  return line.length > commandChars || line !== command.trim() ? `${line.slice(0, commandChars)}…` : line;
}

function lastOutput(log: BuildLog): string {
  return log.last === "" ? "" : ` Last output:\n${log.last}`;
}

function after(ms: number): Promise<undefined> {
  return new Promise((resolve) => setTimeout(() => resolve(undefined), ms).unref());
}
