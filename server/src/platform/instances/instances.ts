/**
 * Runs functions, and scales them to zero. A live version has instances: gVisor machines in which a wrapper program
 * serves the handler. Requests start instances. An idle instance is frozen, and later stored as a snapshot on disk. In
 * both cases the instance resumes with its memory. Meanwhile the request waits, its body unread. If a wake fails, a new
 * instance starts.
 *
 * The database records every instance before it exists. After a crash the next server adopts the machines and
 * snapshots. This folder decides neither which version is deployed nor who has access. The only HTTP it uses is the
 * request of `invoke`.
 */
import { accountSuspended } from "#accounts/errors.ts";
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { notify } from "#accounts/notifications/notifications.ts";
import { DomainError } from "#lib/errors.ts";
import { KeyedMutex } from "#lib/concurrency/keyed-mutex.ts";
import type { LogRing } from "#machines/host/log-rings.ts";
import { findMachineOf } from "#machines/placement/machine-of-owner.ts";
import type { Ending, MachineOwner } from "#machines/machine-owner.ts";
import { release, releaseOrphans } from "#machines/placement/placement.ts";
import { detachSnapshot, detachOrphanSnapshots, deleteSnapshotFiles } from "#machines/snapshots/snapshots.ts";
import type { RequestRecorder } from "../metrics/recorder.ts";
import { functionCrashed, functionNotDeployed, functionTimeout, HandlerFailed } from "./errors.ts";
import { Fleet, type Lease } from "./fleet.ts";
import type { Needs } from "./instance.ts";
import type { FunctionRequest } from "../functions/parts.ts";
import { type InstanceResponse, sendRequest } from "./invoke.ts";
import { type Launch, launchOf, type Runnable } from "./launch.ts";
import { functionRecorder } from "./minutes.ts";
import {
  deleteInstance,
  findFunctionOf,
  findVersion,
  listInstances,
  listServed,
  type VersionRow,
} from "./store.ts";

const lookEveryMs = 1_000;
/** Milliseconds before a change is read again, after a failed read. */
const readAgainMs = 1_000;
/**
 * Milliseconds that the wrapper program has to report a timeout of its own. After this time the server reports the
 * timeout.
 */
const graceMs = 2_000;
/** Limit of attempts for a request, because an instance may end before the request is sent. */
const attempts = 8;
const lockFiles = { nodejs: "/app/package-lock.json", python: "/app/lock.txt" } as const;
const maxLockBytes = 8 * 1024 ** 2;

/** A function that was found by its name. */
export interface NamedFunction {
  functionId: string;
  isDeployed: boolean;
  /** SHA-256 hash of the key; null if the function needs no key. */
  keyHash: Buffer | null;
}

export class FunctionInstances {
  readonly #app: Needs;
  readonly #launch: (version: Runnable) => Promise<Launch>;
  readonly #recorder: RequestRecorder;
  readonly #fleets = new Map<string, Fleet>();
  readonly #byName = new Map<string, Fleet>();
  /** Mutex by function. Reads of a function run one after the other, so that the last one is the newest. */
  readonly #loading = new KeyedMutex();
  /** Id of the version for which an out-of-memory notification was sent, by function. */
  readonly #notifiedOfMemory = new Map<string, string>();
  readonly #background = new Set<Promise<void>>();
  #timer: NodeJS.Timeout | undefined;
  readonly #closing = new AbortController();

  /** Tests pass their own `launch`. */
  constructor(app: Needs, options: { launch?: (version: Runnable) => Promise<Launch> } = {}) {
    this.#app = app;
    this.#launch = options.launch ?? (async (version) => launchOf(version));
    this.#recorder = functionRecorder(app);
  }

  /** Callbacks from the machine layer for machines of functions. */
  readonly machineOwner: MachineOwner = {
    onServerStart: async () => {
      const { db } = this.#app;
      const rows = await listInstances(db);
      const isLeft = ({ state, is_live }: (typeof rows)[number]) =>
        is_live && state !== "starting" && state !== "ending";
      for (const { id } of rows.filter((row) => !isLeft(row))) await deleteInstance(db, id);
      const left = rows.filter(isLeft).map(({ id }) => id);
      await releaseOrphans(this.#app, "function", left);
      await detachOrphanSnapshots(this.#app, "function", left);
    },
    ended: (id, ending) => this.#machineEnded(id, ending),
    describe: async (id) => {
      const row = await findFunctionOf(this.#app.db, id);
      return (
        row && { workspaceId: row.workspace_id, target: { kind: "function", id: row.id, label: row.name } }
      );
    },
  };

  /** Adopts the instances of an earlier server. Runs after the machine layer has started. */
  async start(): Promise<void> {
    const { db, machines } = this.#app;
    machines.onLowMemory(() => this.#giveRoom());
    for (const { id } of await listServed(db)) await this.#load(id);
    for (const row of await listInstances(db)) {
      const fleet = this.#fleets.get(row.function_id);
      if (!fleet?.live) continue;
      const machine = await findMachineOf(db, { ownerKind: "function", ownerId: row.id });
      await fleet.adopt(fleet.live, row, machine?.id ?? null);
    }
    this.#recorder.start();
    this.#timer = setInterval(() => {
      for (const fleet of this.#fleets.values()) fleet.maintain();
    }, lookEveryMs).unref();
  }

  /** Stops the supervision. Instances keep running. */
  async close(): Promise<void> {
    this.#closing.abort(new Error("the server stops"));
    clearInterval(this.#timer);
    await Promise.all(Array.from(this.#fleets.values(), (fleet) => fleet.detach()));
    await Promise.all(this.#background);
    await this.#recorder.stop();
  }

  /**
   * Starts an instance of a built version. The instance is the first of the version once the version is live. Resolves
   * to the installer's lock in the image. Rejects with `HandlerFailed`, whose message is for the owner.
   */
  async prove(version: VersionRow, signal: AbortSignal): Promise<{ lock: string | null }> {
    const runnable = toRunnable(version);
    const fleet = await this.#load(version.function_id);
    if (!runnable || !fleet) throw new HandlerFailed("The function or its image was deleted; deploy again.");
    signal.throwIfAborted();
    const instance = await fleet.prove(runnable);
    signal.throwIfAborted();
    const guest = instance.guest();
    const path = lockFiles[version.runtime];
    if (!(await guest.stat(path).catch(() => undefined))) return { lock: null };
    const { content } = await guest.readFile(path, { maxBytes: maxLockBytes });
    const pieces: Buffer[] = [];
    for await (const piece of content) pieces.push(piece as Buffer);
    return { lock: Buffer.concat(pieces).toString("utf8") };
  }

  /**
   * Called after the commit that made another version live. Instances of the earlier version end after their requests
   * in flight.
   */
  async switched(functionId: string): Promise<void> {
    await this.#follow(functionId);
  }

  /**
   * Called after a change of auth, variables or limits. Auth applies at once, the other fields when an instance is
   * idle.
   */
  async changed(functionId: string): Promise<void> {
    await this.#follow(functionId);
  }

  /** Ends all instances of the function, and refuses its requests from now on. Safe to repeat. */
  async stop(functionId: string): Promise<void> {
    // Waits for a running read, which would otherwise add the fleet again.
    const fleet = await this.#loading.run(functionId, async () => {
      const known = this.#fleets.get(functionId);
      if (known) this.#forget(known);
      return known;
    });
    await fleet?.close();
    if ((await listServed(this.#app.db, functionId)).length === 0) {
      await this.#app.machines.logs.remove(functionId);
    }
  }

  /** Sends a request of the server itself. Metrics count it like any other request. */
  async invoke(
    functionId: string,
    request: FunctionRequest,
    signal: AbortSignal,
  ): Promise<InstanceResponse & { durationMs: number; coldStart: boolean; wakeMs: number | null }> {
    const begun = performance.now();
    let coldStart = false;
    let wakeMs: number | null = null;
    for (let tries = 1; ; tries += 1) {
      const fleet = this.#fleets.get(functionId);
      if (!fleet) throw functionNotDeployed();
      if (this.#app.machines.suspension.isHeld(fleet.row.workspace_id)) throw accountSuspended();
      const lease = await fleet.acquire(signal);
      coldStart ||= lease.coldStart;
      if (lease.wakeMs !== null) wakeMs = (wakeMs ?? 0) + lease.wakeMs;
      const response = await this.#send(fleet, lease, request, signal).finally(() => lease.release());
      if (response === undefined && tries < attempts) continue;
      const durationMs = performance.now() - begun;
      this.recordResponse(functionId, { status: response?.status ?? 502, ms: durationMs });
      if (response === undefined) throw functionCrashed();
      return { ...response, durationMs, coldStart, wakeMs };
    }
  }

  /** Sends a request to an instance. Returns undefined if the request could not be sent. */
  async #send(
    fleet: Fleet,
    lease: Lease,
    request: FunctionRequest,
    signal: AbortSignal,
  ): Promise<InstanceResponse | undefined> {
    const begun = performance.now();
    const late = AbortSignal.timeout(lease.timeoutMs + graceMs);
    const headers = { "x-request-id": randomUUID(), ...request.headers };
    try {
      const guest = this.#app.machines.connect(lease.machine);
      const until = AbortSignal.any([signal, late]);
      const response = await sendRequest(guest, lease.port, { ...request, headers }, until);
      if (response === undefined) await lease.reportGone();
      return response;
    } catch (error) {
      signal.throwIfAborted();
      this.recordResponse(fleet.id, { status: 502, ms: performance.now() - begun });
      if (error instanceof DomainError) throw error;
      if (!late.aborted) {
        await lease.reportGone();
        throw functionCrashed();
      }
      lease.reportStuck();
      throw functionTimeout(lease.timeoutMs / 1000);
    }
  }

  /** Returns a function by the first label of its host, without a query; undefined if there is none. */
  find(name: string): NamedFunction | undefined {
    const fleet = this.#byName.get(name);
    if (!fleet) return undefined;
    const { id, auth_mode, api_key_hash } = fleet.row;
    // A function that needs a key and has none refuses every request.
    const keyHash = auth_mode === "api_key" ? (api_key_hash ?? Buffer.alloc(0)) : null;
    return { functionId: id, isDeployed: fleet.live !== null, keyHash };
  }

  /** Resolves to a slot for a request. The slot's timeout includes the server's own grace period. */
  async acquire(functionId: string, signal: AbortSignal): Promise<Lease> {
    const fleet = this.#fleets.get(functionId);
    if (!fleet) throw functionNotDeployed();
    if (this.#app.machines.suspension.isHeld(fleet.row.workspace_id)) throw accountSuspended();
    const lease = await fleet.acquire(signal);
    return { ...lease, timeoutMs: lease.timeoutMs + graceMs };
  }

  recordResponse(functionId: string, seen: { status: number; ms: number }): void {
    this.#recorder.observed(functionId, seen);
  }

  ring(functionId: string): LogRing {
    return this.#app.machines.logs.of(functionId);
  }

  /** True if no instance runs: every instance is frozen or stored, or there is none. */
  isIdle(functionId: string): boolean {
    const instances = this.#fleets.get(functionId)?.instances ?? [];
    return !instances.some(({ state }) => state === "running" || state === "starting");
  }

  #load(functionId: string): Promise<Fleet | undefined> {
    const known = this.#fleets.get(functionId);
    return known ? Promise.resolve(known) : this.#reload(functionId);
  }

  /** Applies a committed change. The read is retried until it succeeds, because a revoked key must not stay valid. */
  async #follow(functionId: string): Promise<void> {
    try {
      await this.#reload(functionId);
    } catch (error) {
      this.#inBackground("a function's change could not be applied", () => this.#followOn(functionId));
      throw error;
    }
  }

  async #followOn(functionId: string): Promise<void> {
    const { signal } = this.#closing;
    for (;;) {
      await sleep(readAgainMs, undefined, { signal, ref: false });
      try {
        await this.#reload(functionId);
        return;
      } catch (error) {
        this.#app.log.warn(
          { function: functionId, err: error },
          "a function could not be read; the read is retried",
        );
      }
    }
  }

  #reload(functionId: string): Promise<Fleet | undefined> {
    return this.#loading.run(functionId, () => this.#read(functionId));
  }

  /** Reads a function and its live version. Returns undefined if the function is deleted. */
  async #read(functionId: string): Promise<Fleet | undefined> {
    const { db } = this.#app;
    const [row] = await listServed(db, functionId);
    if (!row) return undefined;
    const version = row.live_version_id === null ? undefined : await findVersion(db, row.live_version_id);
    const live = version === undefined ? null : toRunnable(version);
    const known = this.#fleets.get(functionId);
    if (known) {
      if (known.row.name !== row.name) this.#unname(known);
      known.changed(row, live);
      this.#byName.set(row.name, known);
      return known;
    }
    const fleet = new Fleet(
      {
        app: this.#app,
        launch: this.#launch,
        woke: (id, seen) => this.#recorder.woke(id, seen),
        ranOutOfMemory: (one) => this.#ranOutOfMemory(one),
        inBackground: (whatFailed, work) => this.#inBackground(whatFailed, work),
      },
      row,
      live,
    );
    this.#fleets.set(functionId, fleet);
    this.#byName.set(row.name, fleet);
    return fleet;
  }

  #forget(fleet: Fleet): void {
    this.#fleets.delete(fleet.id);
    this.#unname(fleet);
  }

  /** Frees the fleet's name, unless another function has it already. */
  #unname(fleet: Fleet): void {
    const { name } = fleet.row;
    if (this.#byName.get(name) !== fleet) return;
    this.#byName.delete(name);
    for (const other of this.#fleets.values()) {
      if (other !== fleet && other.row.name === name) this.#byName.set(name, other);
    }
  }

  /** Stores the instance that was frozen first on disk, to free memory. Returns false if none is frozen. */
  async #giveRoom(): Promise<boolean> {
    const held = [...this.#fleets.values()]
      .flatMap((fleet) => {
        const instance = fleet.longestFrozen();
        return instance ? [{ fleet, instance }] : [];
      })
      .toSorted((one, other) => one.instance.usedAt - other.instance.usedAt)[0];
    if (!held) return false;
    await held.fleet.store(held.instance);
    return true;
  }

  async #machineEnded(id: string, { exit }: Ending): Promise<void> {
    const app = this.#app;
    const snapshot = await app.db.transaction().execute(async (tx) => {
      const owner = { ownerKind: "function", ownerId: id } as const;
      await release(tx, owner);
      await deleteInstance(tx, id);
      return detachSnapshot(tx, owner);
    });
    if (snapshot) deleteSnapshotFiles(app, snapshot.id);
    for (const fleet of this.#fleets.values()) {
      const instance = fleet.instances.find((one) => one.id === id);
      if (!instance) continue;
      const { memory_mb } = fleet.row;
      const isOutOfMemory = exit?.reason === "out_of_memory";
      fleet.lost(
        instance,
        isOutOfMemory
          ? `The function ran out of memory: its limit is ${memory_mb} MB.`
          : "The function's machine ended.",
      );
      if (isOutOfMemory) this.#ranOutOfMemory(fleet);
    }
  }

  #ranOutOfMemory(fleet: Fleet): void {
    this.#inBackground("a notification could not be stored", () => this.#notifyOutOfMemory(fleet));
  }

  /** Sends a notification for each live version. The owner fixes the cause with a new deploy. */
  async #notifyOutOfMemory({ id, row, live }: Fleet): Promise<void> {
    if (live === null || this.#notifiedOfMemory.get(id) === live.id) return;
    this.#notifiedOfMemory.set(id, live.id);
    await notify(this.#app.db, {
      workspaceId: row.workspace_id,
      kind: "out_of_memory",
      title: `${row.name} ran out of memory`,
      body: `An instance reached its limit of ${row.memory_mb} MB and was ended. Raise memory_mb, or let the handler use less memory.`,
      target: { kind: "function", id, label: row.name },
    });
  }

  #inBackground(whatFailed: string, work: () => Promise<void>): void {
    const task = work()
      .catch((error: unknown) => {
        if (!this.#closing.signal.aborted) this.#app.log.warn({ err: error }, whatFailed);
      })
      .finally(() => this.#background.delete(task));
    this.#background.add(task);
  }
}

/** Returns the fields that an instance needs; null if the version has no image. */
function toRunnable({ id, function_id, runtime, image_id }: VersionRow): Runnable | null {
  return image_id === null ? null : { id, function_id, runtime, image_id };
}
