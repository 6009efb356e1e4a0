/**
 * What runs functions, and lets them sleep for free. A version that is live has instances: gVisor machines in which a
 * program of ours serves the handler. They come when somebody asks and go when nobody does: an idle one is held still,
 * later it is a snapshot on disk, and either goes on with what it had in memory. A request waits for that, with its body
 * unread, and is not refused; a wake that fails is a start from nothing.
 *
 * Which instances there are, and what each is, is in the database before it is so: a server that ends leaves machines
 * that run and snapshots, and the next one goes on with them. This folder decides neither what is deployed nor who may
 * ask; it knows no HTTP but the request that `invoke` makes.
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
import { abandon, abandonOrphans, drop } from "#machines/snapshots/snapshots.ts";
import type { RequestRecorder } from "../metrics/recorder.ts";
import { functionCrashed, functionNotDeployed, functionTimeout, HandlerFailed } from "./errors.ts";
import { Fleet, type Lease } from "./fleet.ts";
import type { Needs } from "./instance.ts";
import type { Asked } from "../functions/parts.ts";
import { type Answered, ask } from "./invoke.ts";
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
/** What changed could not be read. */
const readAgainMs = 1_000;
/** What a program may be late with saying that the time is up; then the server says it. */
const graceMs = 2_000;
/** An instance may go under a request before that is sent; not for ever. */
const attempts = 8;
const lockFiles = { nodejs: "/app/package-lock.json", python: "/app/lock.txt" } as const;
const maxLockBytes = 8 * 1024 ** 2;

/** A function by the name it is asked under. */
export interface Named {
  functionId: string;
  isDeployed: boolean;
  /** SHA-256 of the key; null where anybody may ask. */
  keyHash: Buffer | null;
}

export class FunctionInstances {
  readonly #app: Needs;
  readonly #launch: (version: Runnable) => Promise<Launch>;
  readonly #recorder: RequestRecorder;
  readonly #fleets = new Map<string, Fleet>();
  readonly #byName = new Map<string, Fleet>();
  /** What is read last is what holds. */
  readonly #loading = new KeyedMutex();
  /** Version whose out-of-memory notification was sent, by function. */
  readonly #toldOfMemory = new Map<string, string>();
  readonly #background = new Set<Promise<void>>();
  #timer: NodeJS.Timeout | undefined;
  readonly #closing = new AbortController();

  /** `launch`: a test's own. */
  constructor(app: Needs, options: { launch?: (version: Runnable) => Promise<Launch> } = {}) {
    this.#app = app;
    this.#launch = options.launch ?? (async (version) => launchOf(version));
    this.#recorder = functionRecorder(app);
  }

  /** What the machine layer tells of the machines that functions have. */
  readonly machineOwner: MachineOwner = {
    begins: async () => {
      const { db } = this.#app;
      const rows = await listInstances(db);
      const isLeft = ({ state, is_live }: (typeof rows)[number]) =>
        is_live && state !== "starting" && state !== "ending";
      for (const { id } of rows.filter((row) => !isLeft(row))) await deleteInstance(db, id);
      const left = rows.filter(isLeft).map(({ id }) => id);
      await releaseOrphans(this.#app, "function", left);
      await abandonOrphans(this.#app, "function", left);
    },
    ended: (id, ending) => this.#machineEnded(id, ending),
    describe: async (id) => {
      const row = await findFunctionOf(this.#app.db, id);
      return (
        row && { workspaceId: row.workspace_id, target: { kind: "function", id: row.id, label: row.name } }
      );
    },
  };

  /** After the machines: goes on with what there is. */
  async start(): Promise<void> {
    const { db, machines } = this.#app;
    machines.onShort(() => this.#giveRoom());
    for (const { id } of await listServed(db)) await this.#load(id);
    for (const row of await listInstances(db)) {
      const fleet = this.#fleets.get(row.function_id);
      if (!fleet?.live) continue;
      const machine = await findMachineOf(db, { ownerKind: "function", ownerId: row.id });
      await fleet.adopt(fleet.live, row, machine?.id ?? null);
    }
    this.#recorder.start();
    this.#timer = setInterval(() => {
      for (const fleet of this.#fleets.values()) fleet.look();
    }, lookEveryMs).unref();
  }

  /** Lets go of everything; instances are left as they are. */
  async close(): Promise<void> {
    this.#closing.abort(new Error("the server ends"));
    clearInterval(this.#timer);
    await Promise.all(Array.from(this.#fleets.values(), (fleet) => fleet.letGo()));
    await Promise.all(this.#background);
    await this.#recorder.stop();
  }

  /**
   * One instance of a built version, kept as its first once that is live. Fails with `HandlerFailed`, whose message is
   * for the owner. `lock`: what its installer resolved, as it stands in the image.
   */
  async prove(version: VersionRow, signal: AbortSignal): Promise<{ lock: string | null }> {
    const runnable = toRunnable(version);
    const fleet = await this.#load(version.function_id);
    if (!runnable || !fleet) throw new HandlerFailed("There is nothing to start: no image, or no function.");
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

  /** After the commit that made another version live: it serves, and what served before ends with its last answer. */
  async switched(functionId: string): Promise<void> {
    await this.#follow(functionId);
  }

  /** Auth, variables or limits changed: auth at once, the rest once an instance has nothing to do. */
  async changed(functionId: string): Promise<void> {
    await this.#follow(functionId);
  }

  /** All instances end, and nothing answers for it any more. Once more does nothing. */
  async stop(functionId: string): Promise<void> {
    // In its turn: a reading that is under way would put it back.
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

  /** The server's own request, counted like any other. */
  async invoke(
    functionId: string,
    asked: Asked,
    signal: AbortSignal,
  ): Promise<Answered & { durationMs: number; coldStart: boolean; wakeMs: number | null }> {
    const begun = performance.now();
    let coldStart = false;
    let wakeMs: number | null = null;
    for (let tries = 1; ; tries += 1) {
      const fleet = this.#fleets.get(functionId);
      if (!fleet) throw functionNotDeployed();
      if (this.#app.machines.suspension.isHeld(fleet.row.workspace_id)) throw accountSuspended();
      const lease = await fleet.enter(signal);
      coldStart ||= lease.coldStart;
      if (lease.wakeMs !== null) wakeMs = (wakeMs ?? 0) + lease.wakeMs;
      const answered = await this.#ask(fleet, lease, asked, signal).finally(() => lease.release());
      if (answered === undefined && tries < attempts) continue;
      const durationMs = performance.now() - begun;
      this.recordResponse(functionId, { status: answered?.status ?? 502, ms: durationMs });
      if (answered === undefined) throw functionCrashed();
      return { ...answered, durationMs, coldStart, wakeMs };
    }
  }

  /** Undefined where nothing was sent. */
  async #ask(fleet: Fleet, lease: Lease, asked: Asked, signal: AbortSignal): Promise<Answered | undefined> {
    const begun = performance.now();
    const late = AbortSignal.timeout(lease.timeoutMs + graceMs);
    const headers = { "x-request-id": randomUUID(), ...asked.headers };
    try {
      const guest = this.#app.machines.connect(lease.machine);
      const until = AbortSignal.any([signal, late]);
      const answered = await ask(guest, lease.port, { ...asked, headers }, until);
      if (answered === undefined) await lease.reportGone();
      return answered;
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

  /** By the first label of its host. From memory, at once. */
  find(name: string): Named | undefined {
    const fleet = this.#byName.get(name);
    if (!fleet) return undefined;
    const { id, auth_mode, api_key_hash } = fleet.row;
    // One that needs a key and has none opens to nobody.
    const keyHash = auth_mode === "api_key" ? (api_key_hash ?? Buffer.alloc(0)) : null;
    return { functionId: id, isDeployed: fleet.live !== null, keyHash };
  }

  /** A place for one request, and how long that may take, the server's own patience included. */
  async acquire(functionId: string, signal: AbortSignal): Promise<Lease> {
    const fleet = this.#fleets.get(functionId);
    if (!fleet) throw functionNotDeployed();
    if (this.#app.machines.suspension.isHeld(fleet.row.workspace_id)) throw accountSuspended();
    const lease = await fleet.enter(signal);
    return { ...lease, timeoutMs: lease.timeoutMs + graceMs };
  }

  recordResponse(functionId: string, seen: { status: number; ms: number }): void {
    this.#recorder.observed(functionId, seen);
  }

  ring(functionId: string): LogRing {
    return this.#app.machines.logs.of(functionId);
  }

  /** No instance runs: frozen, asleep or none. */
  isIdle(functionId: string): boolean {
    const instances = this.#fleets.get(functionId)?.instances ?? [];
    return !instances.some(({ state }) => state === "running" || state === "starting");
  }

  #load(functionId: string): Promise<Fleet | undefined> {
    const known = this.#fleets.get(functionId);
    return known ? Promise.resolve(known) : this.#reload(functionId);
  }

  /** What is committed holds here too, whatever becomes of the one reading: an earlier key must not open for longer. */
  async #follow(functionId: string): Promise<void> {
    try {
      await this.#reload(functionId);
    } catch (error) {
      this.#inBackground("a function's change is not known here", () => this.#followOn(functionId));
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
          "a function could not be read; it is tried again",
        );
      }
    }
  }

  #reload(functionId: string): Promise<Fleet | undefined> {
    return this.#loading.run(functionId, () => this.#read(functionId));
  }

  /** Undefined where it is deleted. */
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

  /** Its name is free by now, and may be another's already. */
  #unname(fleet: Fleet): void {
    const { name } = fleet.row;
    if (this.#byName.get(name) !== fleet) return;
    this.#byName.delete(name);
    for (const other of this.#fleets.values()) {
      if (other !== fleet && other.row.name === name) this.#byName.set(name, other);
    }
  }

  /** The one that is held for longest goes to disk. */
  async #giveRoom(): Promise<boolean> {
    const held = [...this.#fleets.values()]
      .flatMap((fleet) => {
        const instance = fleet.longestHeld();
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
      return abandon(tx, owner);
    });
    if (snapshot) drop(app, snapshot.id);
    for (const fleet of this.#fleets.values()) {
      const instance = fleet.instances.find((one) => one.id === id);
      if (!instance) continue;
      const { memory_mb } = fleet.row;
      const isOutOfMemory = exit?.reason === "out_of_memory";
      fleet.lost(
        instance,
        isOutOfMemory ? `It ran out of memory: it may use ${memory_mb} MB.` : "The machine it ran in ended.",
      );
      if (isOutOfMemory) this.#ranOutOfMemory(fleet);
    }
  }

  #ranOutOfMemory(fleet: Fleet): void {
    this.#inBackground("a notification is lost", () => this.#tellOutOfMemory(fleet));
  }

  /** Sends one notification for each live version. The owner fixes it by a new deploy. */
  async #tellOutOfMemory({ id, row, live }: Fleet): Promise<void> {
    if (live === null || this.#toldOfMemory.get(id) === live.id) return;
    this.#toldOfMemory.set(id, live.id);
    await notify(this.#app.db, {
      workspaceId: row.workspace_id,
      kind: "out_of_memory",
      title: `${row.name} ran out of memory`,
      body: `An instance may use ${row.memory_mb} MB and was ended. Raise memory_mb, or let the handler hold less.`,
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

/** Null where it has no image. */
function toRunnable({ id, function_id, runtime, image_id }: VersionRow): Runnable | null {
  return image_id === null ? null : { id, function_id, runtime, image_id };
}
