/**
 * Running apps. An instance is one start of one deployment: a machine, and the app's process in it below PID 1. A
 * deployment starts a new instance beside the serving one (`release`), and waits until the new one is healthy. Then one
 * transaction switches to the new instance (`takeOver`), so exactly one instance serves at every moment. The earlier
 * instance is drained, terminated and removed.
 *
 * The database records which instance serves; this folder keeps its process running. A process that ends by itself is
 * restarted, and a lost machine is replaced. The next server adopts the running apps. A sleeping app is frozen, and
 * later stopped. The first request wakes the app.
 *
 * This folder does not decide which deployment runs. The health check is its only use of HTTP.
 */
import { notify } from "#accounts/notifications/notifications.ts";
import { hostname } from "#config.ts";
import { Semaphore } from "#lib/concurrency/semaphore.ts";
import { SingleFlight } from "#lib/concurrency/single-flight.ts";
import type { LogRing } from "#machines/host/log-rings.ts";
import { findMachineOf } from "#machines/placement/machine-of-owner.ts";
import type { Ending, MachineOwner } from "#machines/machine-owner.ts";
import { release as releaseMachine, releaseOrphans } from "#machines/placement/placement.ts";
import type { AppsContext, Front } from "./apps-context.ts";
import type { InstanceName, Needs } from "./instance-context.ts";
import { drainLater } from "./release/drain.ts";
import { AppRoutes } from "./release/route-table.ts";
import type { End } from "./output/exit-reason.ts";
import { Running } from "./running/app-instance.ts";
import { stopRestedApps } from "./running/sleep.ts";
import { deleteInstance, findInstance, findOwner, type InstanceRow, listInstances } from "./store.ts";

const lookEveryMs = 1_000;
/** Longest time that the start of the server waits for apps to respond. */
const seenWithinMs = 2_000;

export class Apps implements AppsContext {
  readonly app: Needs;
  readonly routes: AppRoutes;
  readonly waking = new SingleFlight<void>();
  /** Instances of this process, by id. */
  readonly running = new Map<string, Running>();
  readonly closing = new AbortController();
  readonly #turns = new Map<string, Semaphore>();
  readonly #background = new Set<Promise<void>>();
  #front: Front | undefined;
  #timer: NodeJS.Timeout | undefined;

  constructor(app: Needs) {
    this.app = app;
    this.routes = new AppRoutes({
      db: app.db,
      domain: hostname(app.config.appsDomain),
      seen: (id) => {
        const running = this.running.get(id);
        return {
          machine: running?.machine ?? null,
          isUp: running?.isUp ?? false,
          traffic: running?.traffic ?? null,
        };
      },
    });
  }

  /** Callbacks from the machine layer for machines of apps. */
  readonly machineOwner: MachineOwner = {
    onServerStart: async () => {
      const rows = await listInstances(this.app.db);
      // The deployment of this release did not switch to it, and starts another instance.
      for (const { id } of rows.filter(({ state }) => state === "starting"))
        await deleteInstance(this.app.db, id);
      const left = rows.filter(({ state }) => state !== "starting").map(({ id }) => id);
      await releaseOrphans(this.app, "app", left);
    },
    ended: (id, ending) => this.#machineEnded(id, ending),
    describe: async (id) => {
      // During the start of the server, `running` has no entry for the instance yet.
      const environmentId =
        this.running.get(id)?.environmentId ?? (await findInstance(this.app.db, id))?.environment_id;
      if (environmentId === undefined) return undefined;
      const owner = await findOwner(this.app.db, environmentId);
      const target = { kind: "environment", id: environmentId, label: owner?.host_label ?? "" };
      return owner && { workspaceId: owner.workspace_id, target };
    },
  };

  /** Adopts running apps and restarts ended ones. Runs after the machine layer has started. */
  async start(): Promise<void> {
    for (const row of await listInstances(this.app.db)) await this.#adopt(row);
    const live = [...this.running.values()].filter(
      ({ state, machine }) => state === "live" && machine !== null,
    );
    await Promise.all(live.map((running) => running.whenUp(seenWithinMs)));
    await this.routes.load();
    this.#timer = setInterval(
      () => this.inBackground("the state of an app could not be checked", () => this.#look()),
      lookEveryMs,
    );
    this.#timer.unref();
  }

  /** Sets the ingress. Called once the ingress accepts connections. */
  serveThrough(front: Front): void {
    this.#front = front;
  }

  get front(): Front {
    if (!this.#front) throw new Error("the ingress is not started yet");
    return this.#front;
  }

  /** Stops the supervision; apps keep running. */
  async close(): Promise<void> {
    clearInterval(this.#timer);
    this.closing.abort(new Error("the server stops"));
    await Promise.all(Array.from(this.running.values(), (running) => running.close()));
    await Promise.all(this.#background);
  }

  /** Returns the environment's live or sleeping instance. */
  serving(environmentId: string): Running | undefined {
    return this.of(environmentId).find(({ state }) => state === "live" || state === "asleep");
  }

  of(environmentId: string): Running[] {
    return [...this.running.values()].filter((running) => running.environmentId === environmentId);
  }

  /** Runs work after the earlier work of the same environment has ended. */
  turn<T>(environmentId: string, work: () => Promise<T>): Promise<T> {
    let turns = this.#turns.get(environmentId);
    if (!turns) this.#turns.set(environmentId, (turns = new Semaphore(1)));
    return turns.run(work);
  }

  ring(environmentId: string): LogRing {
    return this.app.machines.logs.of(environmentId);
  }

  /** Writes a line to the app's own log. */
  async writeLog({ environmentId, row }: InstanceName, text: string): Promise<void> {
    await this.ring(environmentId).append([
      { at: this.app.clock.now().getTime(), stream: "system", text, deployment: row.deployment_id },
    ]);
  }

  async notifyEnd({ environmentId }: InstanceName, { isOutOfMemory, message }: End): Promise<void> {
    const kind = isOutOfMemory ? "out_of_memory" : "app_crashed";
    const owner = await findOwner(this.app.db, environmentId);
    if (!owner) return;
    await notify(this.app.db, {
      workspaceId: owner.workspace_id,
      kind,
      title: `${owner.host_label} ${isOutOfMemory ? "ran out of memory" : "keeps ending"}`,
      body: isOutOfMemory
        ? `${message} It is restarted with the most memory that its size allows.`
        : `${message} It is restarted once a minute; see its logs for the cause.`,
      target: { kind: "environment", id: environmentId, label: owner.host_label },
    });
  }

  /** Starts work in the background. Only the shutdown of the server waits for the work. */
  inBackground(whatFailed: string, work: () => Promise<void>): void {
    const task = work()
      .catch((error: unknown) => {
        if (!this.closing.signal.aborted) this.app.log.warn({ err: error }, whatFailed);
      })
      .finally(() => this.#background.delete(task));
    this.#background.add(task);
  }

  async #adopt(row: InstanceRow): Promise<void> {
    const running = new Running(this, row);
    const machine = await findMachineOf(this.app.db, running.owner);
    if (machine) running.adopt(machine);
    this.running.set(row.id, running);
    if (row.state === "live") running.supervise();
    else if (row.state === "draining") drainLater(this, running, { isGraceful: false });
  }

  async #machineEnded(id: string, ending: Ending): Promise<void> {
    await this.app.db.transaction().execute((tx) => releaseMachine(tx, { ownerKind: "app", ownerId: id }));
    const running = this.running.get(id);
    running?.machineEnded(ending);
  }

  async #look(): Promise<void> {
    await Promise.all(
      Array.from(this.running.values(), (running) =>
        running.adjustMemory().catch((error: unknown) => {
          this.app.log.warn(
            { instance: running.id, err: error },
            "the memory limit of an app could not be adjusted",
          );
        }),
      ),
    );
    await stopRestedApps(this);
  }
}
