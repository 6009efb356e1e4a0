/**
 * Add-ons: databases of a project, each a PostgreSQL or a Redis in a machine of its own. This folder owns which there
 * are, their credentials, their files and where they are reached. It promises that what an add-on acknowledged is kept
 * through the end of its process, of its machine and of this server; that files which should be there are never
 * replaced by empty ones; that a password is answered to who asks for the address and is in no log, event or setting;
 * and that a deleted add-on takes its files and backups with it. Rows say what should run, and the machines what does.
 */
import { notify } from "#accounts/notifications/notifications.ts";
import type { NotificationKind } from "#accounts/notifications/news.ts";
import type { Guest } from "#machines/host/guest.ts";
import type { OnImageProgress } from "#machines/images.ts";
import { findMachineOf } from "#machines/placement/machine-of-owner.ts";
import type { MachineOwner } from "#machines/machine-owner.ts";
import { release, releaseOrphans } from "#machines/placement/placement.ts";
import { Doors } from "./access/public-port-proxy.ts";
import type { AddonsContext, Needs } from "./context.ts";
import type { Engine } from "./engines/engine.ts";
import { engines, type Engines } from "./engines/engines.ts";
import { addonNotRunning } from "./errors.ts";
import { RunningAddon } from "./instances/addon-instance.ts";
import { clearAllProgress, findAny, type AddonRow, type AddonView, listAll } from "./store.ts";
import { startThrowaway, type Throwaway, throwawayPrefix } from "./instances/trial-instance.ts";

export class Addons implements AddonsContext {
  readonly app: Needs;
  readonly engines: Engines;
  readonly doors: Doors;
  /** How often one that is up is asked whether it still is, and what its disk has left. */
  readonly lookEveryMs: number;
  readonly #running = new Map<string, RunningAddon>();
  readonly #ending = new Map<string, Promise<void>>();
  #isStarted = false;

  /** Engines and pauses are a test's own, or those there are. */
  constructor(app: Needs, kinds: Engines = engines, { lookEveryMs = 5_000 } = {}) {
    this.app = app;
    this.lookEveryMs = lookEveryMs;
    this.engines = kinds;
    this.doors = new Doors(app);
  }

  /** What the machine layer tells of the machines that add-ons have. */
  readonly machineOwner: MachineOwner = {
    // Instances that lived for a moment are among those that go.
    begins: async () => {
      const rows = await listAll(this.app.db);
      const ids = rows.map(({ id }) => id);
      await releaseOrphans(this.app, "addon", ids);
    },
    ended: async (ownerId) => {
      await this.app.db.transaction().execute((tx) => release(tx, { ownerKind: "addon", ownerId }));
      this.#running.get(ownerId)?.machineEnded();
    },
    describe: async (id) => {
      if (id.startsWith(throwawayPrefix)) return undefined;
      const row = await findAny(this.app.db, id);
      return row && { workspaceId: row.workspace_id, target: { kind: "addon", id, label: row.name } };
    },
  };

  /** After the machines: goes on with what runs, and brings up what does not. */
  async start(): Promise<void> {
    this.#isStarted = true;
    await clearAllProgress(this.app.db);
    for (const row of await listAll(this.app.db)) if (row.deleted_at === null) this.begin(row);
  }

  /** Lets go of everything; add-ons run on. */
  async close(): Promise<void> {
    this.#isStarted = false;
    this.doors.close();
    await Promise.all(Array.from(this.#running.values(), (running) => running.close()));
    this.#running.clear();
    await Promise.allSettled(this.#ending.values());
  }

  /** Brings up one whose row is there, and holds it up from now on. */
  begin(row: AddonView): void {
    if (!this.#isStarted || this.#running.has(row.id)) return;
    const running = new RunningAddon(this, row);
    this.#running.set(row.id, running);
    running.supervise();
    this.changed(row);
  }

  /** Its row has changed, as far as others say. */
  changed(row: AddonView): void {
    const running = this.#running.get(row.id);
    if (!running) return;
    const { engine } = running;
    const { public_port: port } = row;
    const connect = async () => {
      const guest = this.guest(row.id);
      if (!guest) throw addonNotRunning(running.row.status);
      return guest.connect(engine.port);
    };
    this.doors.set(row.id, port === null ? undefined : { kind: row.kind, port, connect });
  }

  /** Its machine is gone when this returns, and nobody brings it up again. Safe to repeat. */
  end(id: string): Promise<void> {
    const ending = this.#ending.get(id) ?? this.#end(id).finally(() => this.#ending.delete(id));
    this.#ending.set(id, ending);
    return ending;
  }

  async #end(id: string): Promise<void> {
    this.doors.set(id, undefined);
    await this.#running.get(id)?.close();
    this.#running.delete(id);
    const owner = { ownerKind: "addon" as const, ownerId: id };
    const machine = await this.app.db.transaction().execute((tx) => release(tx, owner));
    if (machine) await this.app.machines.destroy(machine);
  }

  running(id: string): RunningAddon | undefined {
    return this.#running.get(id);
  }

  /** Undefined where it does not run. */
  guest(addonId: string): Guest | undefined {
    const running = this.#running.get(addonId);
    return running?.isUp ? running.guest() : undefined;
  }

  /**
   * A second, empty instance of the same kind, version and size, for as long as it is held; not reachable by anyone. It
   * answers queries, and its user and database are there. Its files go with it.
   */
  throwaway(addon: AddonRow, signal: AbortSignal): Promise<Throwaway> {
    return startThrowaway(this, addon, signal);
  }

  /**
   * Stops the database process, lets `work` change files in its machine, starts it again: it answers when this returns,
   * or is on its way where that takes longer than a minute. Throws `addon_not_running`.
   */
  async whileStopped<T>(addonId: string, work: (guest: Guest) => Promise<T>): Promise<T> {
    const running = this.#running.get(addonId);
    if (!running) throw addonNotRunning("not running here");
    try {
      return await running.whileStopped(work);
    } finally {
      await running.whenUp(60_000);
    }
  }

  /** The same for one that does not come up; see `RunningAddon.whileDown`. */
  async whileDown(addonId: string, work: (guest: Guest) => Promise<void>): Promise<boolean> {
    const running = this.#running.get(addonId);
    if (!running) throw addonNotRunning("not running here");
    try {
      return await running.whileDown(work);
    } finally {
      await running.whenUp(60_000);
    }
  }

  /** Ended in order and begun again; what is down is begun at once. Answers as `whileStopped` does. */
  async restart(addonId: string): Promise<void> {
    const running = this.#running.get(addonId);
    if (running?.isUp) return this.whileStopped(addonId, async () => {});
    running?.hurry();
    await running?.whenUp(60_000);
  }

  /** Id of the kind's image, which is made if it is absent. Concurrent callers share one build. */
  async image(engine: Engine, signal: AbortSignal, progress?: OnImageProgress): Promise<string> {
    signal.throwIfAborted();
    const aborted = Promise.withResolvers<never>();
    const abort = () => aborted.reject(signal.reason);
    signal.addEventListener("abort", abort, { once: true });
    try {
      const making = this.app.machines.images.ensure(engine.image, progress);
      making.catch(() => {});
      return (await Promise.race([making, aborted.promise])).id;
    } finally {
      signal.removeEventListener("abort", abort);
    }
  }

  /** Whether one has a machine, whatever that does. */
  async hasMachine(id: string): Promise<boolean> {
    return (await findMachineOf(this.app.db, { ownerKind: "addon", ownerId: id })) !== undefined;
  }

  async tell(row: AddonView, kind: NotificationKind, what: string, body: string): Promise<void> {
    await notify(this.app.db, {
      workspaceId: row.workspace_id,
      kind,
      title: `${row.name} of ${row.project_name} ${what}`,
      body,
      target: { kind: "addon", id: row.id, label: row.name },
    });
  }
}
