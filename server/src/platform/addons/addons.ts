/**
 * Add-ons: databases of a project. Each is a PostgreSQL or Redis in its own machine. This folder owns their rows,
 * credentials, files and addresses.
 *
 * Acknowledged data survives a crash of the process, the machine or this server. Missing files are an error, and are
 * never replaced by empty ones. Responses contain a password only within the connection URL. No log, event or setting
 * contains a password. Deleting an add-on deletes its files and backups. Rows hold the desired state, machines the
 * observed state.
 */
import { notify } from "#accounts/notifications/notifications.ts";
import type { NotificationKind } from "#accounts/notifications/news.ts";
import type { Guest } from "#machines/host/guest.ts";
import type { OnImageProgress } from "#machines/images.ts";
import { findMachineOf } from "#machines/placement/machine-of-owner.ts";
import type { MachineOwner } from "#machines/machine-owner.ts";
import { release, releaseOrphans } from "#machines/placement/placement.ts";
import { PublicPortProxy } from "./access/public-port-proxy.ts";
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
  readonly publicPorts: PublicPortProxy;
  /** Milliseconds between health checks, which also read the free disk. */
  readonly lookEveryMs: number;
  readonly #running = new Map<string, RunningAddon>();
  readonly #ending = new Map<string, Promise<void>>();
  #isStarted = false;

  /** Tests pass their own engines and intervals. */
  constructor(app: Needs, kinds: Engines = engines, { lookEveryMs = 5_000 } = {}) {
    this.app = app;
    this.lookEveryMs = lookEveryMs;
    this.engines = kinds;
    this.publicPorts = new PublicPortProxy(app);
  }

  /** Callbacks of the machine layer for machines of add-ons. */
  readonly machineOwner: MachineOwner = {
    // The call also removes throwaway instances of an earlier server.
    onServerStart: async () => {
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

  /** Adopts running add-ons, and starts the others. Runs after the machine layer has started. */
  async start(): Promise<void> {
    this.#isStarted = true;
    await clearAllProgress(this.app.db);
    for (const row of await listAll(this.app.db)) if (row.deleted_at === null) this.supervise(row);
  }

  /** Stops the supervision; the add-ons keep running. */
  async close(): Promise<void> {
    this.#isStarted = false;
    this.publicPorts.close();
    await Promise.all(Array.from(this.#running.values(), (running) => running.close()));
    this.#running.clear();
    await Promise.allSettled(this.#ending.values());
  }

  /** Starts an add-on whose row exists, and supervises it. */
  supervise(row: AddonView): void {
    if (!this.#isStarted || this.#running.has(row.id)) return;
    const running = new RunningAddon(this, row);
    this.#running.set(row.id, running);
    running.supervise();
    this.applyChange(row);
  }

  /** Opens, moves or closes the public port after a change of the row. */
  applyChange(row: AddonView): void {
    const running = this.#running.get(row.id);
    if (!running) return;
    const { engine } = running;
    const { public_port: port } = row;
    const connect = async () => {
      const guest = this.guest(row.id);
      if (!guest) throw addonNotRunning(running.row.status);
      return guest.connect(engine.port);
    };
    this.publicPorts.set(row.id, port === null ? undefined : { kind: row.kind, port, connect });
  }

  /** Removes the add-on's machine, and stops the supervision. Safe to repeat. */
  end(id: string): Promise<void> {
    const ending = this.#ending.get(id) ?? this.#end(id).finally(() => this.#ending.delete(id));
    this.#ending.set(id, ending);
    return ending;
  }

  async #end(id: string): Promise<void> {
    this.publicPorts.set(id, undefined);
    await this.#running.get(id)?.close();
    this.#running.delete(id);
    const owner = { ownerKind: "addon" as const, ownerId: id };
    const machine = await this.app.db.transaction().execute((tx) => release(tx, owner));
    if (machine) await this.app.machines.destroy(machine);
  }

  running(id: string): RunningAddon | undefined {
    return this.#running.get(id);
  }

  /** Returns the guest of a running add-on; undefined for an add-on in another state. */
  guest(addonId: string): Guest | undefined {
    const running = this.#running.get(addonId);
    return running?.isUp ? running.guest() : undefined;
  }

  /**
   * Starts a second, empty instance of the add-on's kind, version and size, with its user and database. No network
   * reaches the instance. Disposing the instance removes its machine and files.
   */
  throwaway(addon: AddonRow, signal: AbortSignal): Promise<Throwaway> {
    return startThrowaway(this, addon, signal);
  }

  /**
   * Stops the database process, runs `work` on the machine's files, and starts the process again. Resolves once the
   * database responds, or after a minute. Throws `addon_not_running`.
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

  /** Runs `work` on the files of an add-on that fails to start; see `RunningAddon.whileDown`. */
  async whileDown(addonId: string, work: (guest: Guest) => Promise<void>): Promise<boolean> {
    const running = this.#running.get(addonId);
    if (!running) throw addonNotRunning("not running here");
    try {
      return await running.whileDown(work);
    } finally {
      await running.whenUp(60_000);
    }
  }

  /**
   * Stops the process gracefully and starts it again. A stopped process starts at once. Resolves as `whileStopped`
   * does.
   */
  async restart(addonId: string): Promise<void> {
    const running = this.#running.get(addonId);
    if (running?.isUp) return this.whileStopped(addonId, async () => {});
    running?.skipBackoff();
    await running?.whenUp(60_000);
  }

  /** Returns the id of the image for an engine, which is built if it is missing. Concurrent callers share a build. */
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

  /** True if the add-on has a machine, in any state. */
  async hasMachine(id: string): Promise<boolean> {
    return (await findMachineOf(this.app.db, { ownerKind: "addon", ownerId: id })) !== undefined;
  }

  async notifyOwner(row: AddonView, kind: NotificationKind, what: string, body: string): Promise<void> {
    await notify(this.app.db, {
      workspaceId: row.workspace_id,
      kind,
      title: `${row.name} of ${row.project_name} ${what}`,
      body,
      target: { kind: "addon", id: row.id, label: row.name },
    });
  }
}
