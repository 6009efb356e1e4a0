/**
 * Apps that run. An instance is one start of one deployment: a machine of its own, the guest's PID 1 in it, and the
 * app's process below that. A deployment makes a new one beside the one that serves (`release`), waits until it answers,
 * and switches in one transaction (`takeOver`); the one before finishes what it has begun, is asked to end and is
 * removed. So there is never a moment in which nothing serves.
 *
 * Which instance serves is in the database; that its process runs is this folder's to see to. A process that ends
 * unasked is begun again, a machine that is lost is replaced, a server that ends leaves both running and the next one
 * goes on with them. An app that is asleep is held still, and let go of after a while; the first request wakes it.
 *
 * It never decides what is deployed, and it knows no HTTP but the request by which it asks whether an app is well.
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
import { letGoOfRested } from "./running/sleep.ts";
import { deleteInstance, findInstance, findOwner, type InstanceRow, listInstances } from "./store.ts";

const lookEveryMs = 1_000;
/** How long the start of the server waits to see which apps answer. */
const seenWithinMs = 2_000;

export class Apps implements AppsContext {
  readonly app: Needs;
  readonly routes: AppRoutes;
  readonly waking = new SingleFlight<void>();
  /** What every instance there is does in this process. */
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

  /** What the machine layer tells of the machines that apps have. */
  readonly machineOwner: MachineOwner = {
    begins: async () => {
      const rows = await listInstances(this.app.db);
      // What was to be switched to: whoever deploys it begins anew.
      for (const { id } of rows.filter(({ state }) => state === "starting"))
        await deleteInstance(this.app.db, id);
      const left = rows.filter(({ state }) => state !== "starting").map(({ id }) => id);
      await releaseOrphans(this.app, "app", left);
    },
    ended: (id, ending) => this.#machineEnded(id, ending),
    describe: async (id) => {
      // Before the start, `running` has no entry yet.
      const environmentId =
        this.running.get(id)?.environmentId ?? (await findInstance(this.app.db, id))?.environment_id;
      if (environmentId === undefined) return undefined;
      const owner = await findOwner(this.app.db, environmentId);
      const target = { kind: "environment", id: environmentId, label: owner?.host_label ?? "" };
      return owner && { workspaceId: owner.workspace_id, target };
    },
  };

  /** After the machines: goes on with what ran, and begins again what does not any more. */
  async start(): Promise<void> {
    for (const row of await listInstances(this.app.db)) await this.#adopt(row);
    const live = [...this.running.values()].filter(
      ({ state, machine }) => state === "live" && machine !== null,
    );
    await Promise.all(live.map((running) => running.whenUp(seenWithinMs)));
    await this.routes.load();
    this.#timer = setInterval(
      () => this.inBackground("a look at an app failed", () => this.#look()),
      lookEveryMs,
    );
    this.#timer.unref();
  }

  /** The way in is open. */
  serveThrough(front: Front): void {
    this.#front = front;
  }

  get front(): Front {
    if (!this.#front) throw new Error("nothing leads to the apps yet");
    return this.#front;
  }

  /** Lets go of everything; apps run on. */
  async close(): Promise<void> {
    clearInterval(this.#timer);
    this.closing.abort(new Error("the server ends"));
    await Promise.all(Array.from(this.running.values(), (running) => running.close()));
    await Promise.all(this.#background);
  }

  /** What an environment serves, or what sleeps in its place. */
  serving(environmentId: string): Running | undefined {
    return this.of(environmentId).find(({ state }) => state === "live" || state === "asleep");
  }

  of(environmentId: string): Running[] {
    return [...this.running.values()].filter((running) => running.environmentId === environmentId);
  }

  /** One thing after another, for one environment. */
  turn<T>(environmentId: string, work: () => Promise<T>): Promise<T> {
    let turns = this.#turns.get(environmentId);
    if (!turns) this.#turns.set(environmentId, (turns = new Semaphore(1)));
    return turns.run(work);
  }

  ring(environmentId: string): LogRing {
    return this.app.machines.logs.of(environmentId);
  }

  /** In the app's own log. */
  async say({ environmentId, row }: InstanceName, text: string): Promise<void> {
    await this.ring(environmentId).append([
      { at: this.app.clock.now().getTime(), stream: "system", text, deployment: row.deployment_id },
    ]);
  }

  async tell({ environmentId }: InstanceName, { isOutOfMemory, said }: End): Promise<void> {
    const kind = isOutOfMemory ? "out_of_memory" : "app_crashed";
    const owner = await findOwner(this.app.db, environmentId);
    if (!owner) return;
    await notify(this.app.db, {
      workspaceId: owner.workspace_id,
      kind,
      title: `${owner.host_label} ${isOutOfMemory ? "ran out of memory" : "keeps ending"}`,
      body: isOutOfMemory
        ? `${said} It is started again with as much as its size may grow to.`
        : `${said} It is started again once a minute; its logs say more.`,
      target: { kind: "environment", id: environmentId, label: owner.host_label },
    });
  }

  /** Work that nobody waits for but the end of the server. */
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
        running.look().catch((error: unknown) => {
          this.app.log.warn(
            { instance: running.id, err: error },
            "an app's memory could not be looked after",
          );
        }),
      ),
    );
    await letGoOfRested(this);
  }
}
