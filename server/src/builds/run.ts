/**
 * Carrying builds out, as many at once as the host is configured for. A build is a row until it ends; its machine, its
 * log and the image in the making belong to this process and are found and undone by the next one. So a server that is
 * stopped puts what it had under way back into the queue, one that is killed leaves it to its successor, and a build
 * that sees three servers die is the likelier cause of that and is not begun again.
 */
import type { GuestProcess, MachineExit, ProcessExit } from "@kontor/runtime/driver.ts";
import type { App } from "#app.ts";
import { addJob, type Tasks } from "#jobs/jobs.ts";
import { DomainError } from "#lib/errors.ts";
import { RecentOwners } from "#lib/concurrency/fair-queue.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { bringUp } from "#machines/placement/start-reserved.ts";
import { networkEnv } from "#machines/placement/environment.ts";
import type { Guest } from "#machines/host/guest.ts";
import type { HostImage } from "#machines/host/host.ts";
import type { MachineOwner } from "#machines/machine-owner.ts";
import { place, release, releaseAll } from "#machines/placement/placement.ts";
import { orderFor } from "#machines/placement/order.ts";
import { withRoom } from "#machines/placement/reclaim.ts";
import { type BuildEnd, type BuildOwners, runTask, sweepImages } from "./builds.ts";
import { BuildFailed, Dropped, sentence } from "./failures.ts";
import { BuildLog } from "./log.ts";
import { buildDockerfile, inspectImage } from "./dockerfile.ts";
import {
  type BuildRow,
  endBuild,
  findBuild,
  holdBuild,
  interruptedBuilds,
  noteStep,
  putBack,
  requeue,
  takeNext,
} from "./store.ts";

type Needs = Pick<App, "db" | "machines" | "secrets" | "config" | "clock" | "log">;

const attemptsMax = 3;
/** A host without room is asked again so often, and for so long. */
const noRoomRetryMs = 5_000;
const noRoomForMs = 60 * 60_000;
/** Reading a machine's files out takes seconds; tens of gigabytes on a slow disk take minutes. */
const captureMaxMs = 10 * 60_000;
/** Minimum share of the build's time for the capture, even if the steps used all of it. */
const captureShare = 1 / 2;
/** Time in which the guest ends a step that is out of time, and as a share of the build's time. After it, the host does. */
const graceMaxMs = 10_000;
const graceShare = 1 / 6;
const sweepEveryMs = 15_000;
/** The end of a machine is heard of within this of the call that broke on it. */
const exitWithinMs = 6_000;
const endedKinds = new Set(["machine_died", "not_running", "not_found"]);
/** As much of a command as a reason repeats. */
const commandChars = 200;

/** The server stops. */
class Interrupted extends Error {}

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

  /** What the machine layer tells of the machines that builds have. */
  readonly machineOwner: MachineOwner = {
    // Nobody goes on with what an earlier server's steps had begun.
    begins: async () => {
      await releaseAll(this.#app, "build");
      await this.#recover();
      await addJob(this.#app.db, runTask, {});
    },
    ended: async (id, { exit }) => this.#running.get(id)?.exit.resolve(exit),
  };

  readonly tasks: Tasks = { [runTask]: (_: unknown, { signal }) => this.run(signal) };

  /** Takes builds from the queue until none waits or enough run. */
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
      const mayGoOn = await this.#carryOut(next.build, signal).finally(() => this.#recent.recordEnd(next.payerId));
      if (!mayGoOn) return;
    }
  }

  /** Images that nobody wants any more go, now and from time to time: the last machine on one may end at any time. */
  start(): void {
    const sweep = () =>
      sweepImages(this.#app).catch((error: unknown) =>
        this.#app.log.warn({ err: error }, "images could not be swept yet"),
      );
    void sweep();
    this.#sweeping = setInterval(sweep, sweepEveryMs).unref();
  }

  stop(): void {
    clearInterval(this.#sweeping);
  }

  /** Builds whose process is gone are begun again, or ended where that happened too often. */
  async #recover(): Promise<void> {
    for (const { id, owner_kind, dockerfile, attempts } of await interruptedBuilds(
      this.#app.db,
      this.#app.machines.host.id,
    )) {
      if (this.#running.has(id)) continue;
      if (attempts < attemptsMax) await requeue(this.#app.db, id);
      else {
        const error = `The server ended ${attempts} times while this was built; it is not tried again.`;
        await this.#end({ id, owner_kind, dockerfile }, { status: "failed", error });
      }
    }
  }

  /** False where there is no point in taking the next one now. */
  async #carryOut(build: BuildRow, signal: AbortSignal): Promise<boolean> {
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
      return await this.#failed(build, error);
    } finally {
      this.#running.delete(build.id);
    }
  }

  async #failed(build: BuildRow, error: unknown): Promise<boolean> {
    const { db, clock, log } = this.#app;
    await this.#letGo(build.id);
    if (error instanceof Interrupted) {
      await putBack(db, build.id);
      return false;
    }
    if (error instanceof DomainError && error.code === "no_capacity") {
      const now = clock.now().getTime();
      if (now - build.created_at.getTime() < noRoomForMs) {
        await putBack(db, build.id);
        const runAt = new Date(now + noRoomRetryMs);
        await addJob(db, runTask, {}, { key: `${runTask}:later`, runAt });
        return false;
      }
    }
    if (error instanceof Dropped) return true;
    const isOurs = !(error instanceof BuildFailed) && !(error instanceof DomainError);
    if (isOurs) log.error({ build: build.id, err: error }, "a build failed for a reason of this server's");
    await this.#end(build, {
      status: "failed",
      error: isOurs ? "The build could not be carried out on this host." : (error as Error).message,
    });
    return true;
  }

  /** The build's row, its owner's record and the machine's fate commit together. */
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
    // An image of a Dockerfile goes with the next sweep, once its machine is gone.
    if (build.dockerfile === null) await machines.host.removeImage(build.id);
  }

  async #letGo(id: string): Promise<void> {
    const { db, machines } = this.#app;
    const machine = await db.transaction().execute((tx) => release(tx, { ownerKind: "build", ownerId: id }));
    if (machine) machines.destroyLater(machine);
  }

  async #build(build: BuildRow, running: Running, signal: AbortSignal): Promise<HostImage> {
    const { db, machines, config } = this.#app;
    const base = await machines.images.ensure(build.base).catch((error: unknown) => {
      throw new BuildFailed(`The base ${build.base} could not be made: ${(error as Error).message}`);
    });
    // An earlier attempt may have come as far as this.
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
        if (!(await noteStep(db, build.id, step.number))) throw new Dropped();
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

  /** The enclosed builder makes the image; then a machine boots from it, so that a ready template is known to boot. */
  async #buildDockerfile(build: BuildRow, dockerfile: string, running: Running, signal: AbortSignal) {
    const { machines } = this.#app;
    // An earlier attempt may have come as far as this.
    await machines.host.removeAppImage(build.id);
    const log = new BuildLog(this.#app, build.id);
    try {
      const { sizeBytes, defaults } = await buildDockerfile(this.#app, build, dockerfile, { log, signal });
      await passKillPoint("build.stepped");
      signal.throwIfAborted();
      const image = { id: build.id, sizeBytes, contents: {}, substituted: false, substitute: null };
      const { guest } = await this.#boot(build, image);
      await passKillPoint("build.started");
      await inspectImage(guest, defaults, log);
      await log.flush();
      return { image, defaults };
    } catch (error) {
      await log.flush();
      if (signal.aborted) throw new Interrupted();
      throw await this.#explain(build.id, error, running);
    }
  }

  async #boot(build: BuildRow, base: HostImage) {
    const { db, machines, config } = this.#app;
    const env = {
      HOME: "/root",
      // Nobody is there to answer: apt's questions would be waited for until the deadline.
      DEBIAN_FRONTEND: "noninteractive",
      ...networkEnv(build.network),
    };
    const reservation = await withRoom(this.#app, () =>
      db.transaction().execute(async (tx) => {
        if (!(await holdBuild(tx, build.id))) throw new Dropped();
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
    await bringUp(this.#app, reservation);
    return { order: orderFor(reservation.row), guest: machines.connect(reservation.row.id) };
  }

  /** Fails with a `BuildFailed` that says which step it was and what it said last. */
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
      new BuildFailed(`${name} ${how}: ${shorten(step.command)}.${more}${saidLast(log)}`);
    const minutes = this.#app.config.buildTimeoutMinutes;
    const overtime = `was still running when the build's ${minutes} minutes were over`;
    // Steps run as root beside PID 1, so the guest may be busy or hostile: neither the end of the time nor the server's
    // stop waits for it.
    const over = Promise.withResolvers<never>();
    over.promise.catch(() => {});
    const timer = setTimeout(() => over.reject(fail(overtime)), lastMoment - performance.now());
    const stop = () => over.reject(new Interrupted());
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
      throw signal.aborted ? new Interrupted() : error;
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

  /** What broke as its owner may read it: the machine's own end where that is what it was. */
  async #explain(id: string, error: unknown, { exit }: Running): Promise<unknown> {
    const kind = (error as { kind?: string } | null)?.kind;
    if (kind === undefined) return error;
    if (kind === "image_failed" || kind === "timeout") return new BuildFailed(sentence(error));
    if (!endedKinds.has(kind)) {
      return new BuildFailed(`The steps left a machine that does not work any more: ${sentence(error)}`);
    }
    // Dropped: its machine went with it, and nobody asks why.
    if (!(await findBuild(this.#app.db, id))) return new Dropped();
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

function saidLast(log: BuildLog): string {
  return log.last === "" ? "" : ` It said last:\n${log.last}`;
}

function after(ms: number): Promise<undefined> {
  return new Promise((resolve) => setTimeout(() => resolve(undefined), ms).unref());
}
