/**
 * Supervises an add-on: its machine and its database process. A process that ends is restarted in the same machine. A
 * lost machine is replaced, and the volume is attached to the new machine. All state is in the machine, so the next
 * server continues from there.
 */
import { setTimeout as sleep } from "node:timers/promises";
import { DomainError } from "#lib/errors.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { Semaphore } from "#lib/concurrency/semaphore.ts";
import { startReserved } from "#machines/placement/start-reserved.ts";
import type { CommandRecord, Guest } from "#machines/host/guest.ts";
import { type Owner, findMachineOf } from "#machines/placement/machine-of-owner.ts";
import { placeCold } from "#machines/placement/placement.ts";
import { withReclaim } from "#machines/placement/reclaim.ts";
import { Output } from "#platform/apps/output/output.ts";
import { ProgressWriter, type Span } from "#platform/progress.ts";
import type { AddonsContext } from "../context.ts";
import type { Engine, Instance, Room } from "../engines/engine.ts";
import { addonNotRunning, EngineFailure } from "../errors.ts";
import { networkOf, requestOf } from "./machine.ts";
import { openPassword } from "../access/password.ts";
import {
  startProcess,
  stopProcess,
  findProcess,
  describeExit,
  waitUntilResponsive,
} from "../engines/database-process.ts";
import { failuresInRow, restartDelayMs, notifyAfter } from "./restart-backoff.ts";
import { extentOf } from "../sizes.ts";
import { type AddonChange, type AddonView, changeRow, writeProgress } from "../store.ts";
import type { AddonStep } from "../tables.ts";
import { volumeOf } from "./volume.ts";

const askAgainMs = 250;

/** Spans of the steps within a start, in percent. Building the first image takes minutes, all other steps seconds. */
const spans: Readonly<Record<AddonStep, Span>> = {
  image: { from: 0, to: 70 },
  volume: { from: 70, to: 80 },
  start: { from: 80, to: 90 },
  answer: { from: 90, to: 100 },
};

export class RunningAddon {
  row: AddonView;
  machine: string | null = null;
  command: string | null = null;
  /** True if the last health check succeeded. */
  isUp = false;
  readonly engine: Engine;
  readonly owner: Owner;
  readonly #addons: AddonsContext;
  readonly #life = new AbortController();
  /** Mutex for starts, and for work during which the process must be stopped. */
  readonly #turn = new Semaphore(1);
  #machineGone = Promise.withResolvers<void>();
  #upChanged = Promise.withResolvers<void>();
  #waitingToRestart = new AbortController();
  #isAskedToEnd = false;
  #failures = 0;
  #isFull = false;
  #supervising: Promise<void> | undefined;
  /** Progress of the current start. */
  #progress: ProgressWriter<AddonStep> | undefined;

  constructor(addons: AddonsContext, row: AddonView) {
    this.#addons = addons;
    this.row = row;
    this.engine = addons.engines[row.kind];
    this.owner = { ownerKind: "addon", ownerId: row.id };
  }

  get id(): string {
    return this.row.id;
  }

  get instance(): Instance {
    const { username, database, options, is_made: isMade, size } = this.row;
    const password = openPassword(this.#addons.app, this.row);
    return { extent: extentOf(size), username, database, options, isMade, password };
  }

  /** The machine's guest; undefined without a machine, or while the machine ends. */
  guest(): Guest | undefined {
    if (this.machine === null) return undefined;
    try {
      return this.#addons.app.machines.connect(this.machine);
    } catch {
      return undefined;
    }
  }

  supervise(): void {
    this.#supervising ??= this.#supervise().catch((error: unknown) => {
      if (this.#life.signal.aborted) return;
      this.#addons.app.log.error({ addon: this.id, err: error }, "an add-on is not looked after any more");
    });
  }

  /** Called when the machine ended by itself or was released. */
  machineEnded(): void {
    this.machine = null;
    this.command = null;
    this.#setUp(false);
    this.#machineGone.resolve();
  }

  /** Waits at most `ms` milliseconds, and returns true if the database responds. */
  async whenUp(ms: number): Promise<boolean> {
    const late = sleep(ms, undefined, { ref: false });
    while (!this.isUp) {
      const isOver = await Promise.race([this.#upChanged.promise.then(() => false), late.then(() => true)]);
      if (isOver) break;
    }
    return this.isUp;
  }

  /** Ends the wait before the next restart, so that a stopped process starts at once. */
  skipBackoff(): void {
    this.#waitingToRestart.abort();
  }

  /**
   * Stops the process gracefully, and then runs `work`. The supervision starts the process afterwards. Throws
   * `addon_not_running`.
   */
  async whileStopped<T>(work: (guest: Guest) => Promise<T>): Promise<T> {
    const value = await this.#turn.run(async () => {
      const guest = this.guest();
      const { command } = this;
      if (!guest || command === null || !this.isUp) throw addonNotRunning(this.row.status);
      this.#isAskedToEnd = true;
      try {
        await this.#save({ status: "stopped", error: null });
        this.#setUp(false);
        await stopProcess(guest, this.engine, command);
      } catch (error) {
        await this.#resumeAfterFailedStop(guest, command);
        throw error;
      }
      return work(guest);
    });
    return value;
  }

  /**
   * Runs `work` on the files of an add-on that fails to start. Only its machine is needed. Returns false without
   * running `work` if the add-on has started. Throws `addon_not_running` if there is no machine either.
   */
  async whileDown(work: (guest: Guest) => Promise<void>): Promise<boolean> {
    return this.#turn.run(async () => {
      if (this.isUp) return false;
      const guest = this.guest();
      if (!guest) throw addonNotRunning(this.row.status);
      // A process that never responded may still run, and is stopped first.
      const command = await findProcess(guest);
      if (command !== undefined) await stopProcess(guest, this.engine, command);
      await work(guest);
      this.skipBackoff();
      return true;
    });
  }

  /** Stops supervision; machine and process keep running. */
  async close(): Promise<void> {
    this.#life.abort(new Error("supervision of the add-on has stopped"));
    await this.#supervising;
  }

  async #supervise(): Promise<void> {
    const { signal } = this.#life;
    while (!signal.aborted) {
      await this.#untilReleased();
      const startedAt = performance.now();
      const reason = await this.#runOnce().catch((error: unknown) => {
        if (!signal.aborted)
          this.#addons.app.log.warn({ addon: this.id, err: error }, "starting an add-on failed");
        return sentence(error);
      });
      await this.#endProgress().catch(() => {});
      if (signal.aborted) return;
      this.#setUp(false);
      this.command = null;
      if (this.#isAskedToEnd) {
        this.#isAskedToEnd = false;
        this.#failures = 0;
        continue;
      }
      // A frozen database does not respond, which counts as no failure.
      if (this.#isHeld) continue;
      this.#failures = failuresInRow(this.#failures, performance.now() - startedAt);
      await this.#failed(reason).catch((error: unknown) => {
        this.#addons.app.log.warn({ addon: this.id, err: error }, "storing an add-on's stopProcess failed");
      });
      this.#waitingToRestart = new AbortController();
      const until = AbortSignal.any([signal, this.#waitingToRestart.signal]);
      await sleep(restartDelayMs(this.#failures), undefined, { signal: until, ref: false }).catch(() => {});
    }
  }

  get #isHeld(): boolean {
    return this.#addons.app.machines.suspension.isHeld(this.row.workspace_id);
  }

  /** Resolves when the workspace is not suspended. */
  async #untilReleased(): Promise<void> {
    const { signal } = this.#life;
    while (this.#isHeld) await sleep(askAgainMs, undefined, { signal, ref: false });
  }

  /** Starts the database from any state and watches it until its end. Returns the reason of the end. */
  async #runOnce(): Promise<string> {
    await this.#turn.run(() => this.#comeUp());
    await passKillPoint("addon.up");
    return this.#watch();
  }

  async #comeUp(): Promise<void> {
    const { signal } = this.#life;
    signal.throwIfAborted();
    const { db } = this.#addons.app;
    this.#progress = new ProgressWriter((progress) => writeProgress(db, this.id, progress));
    const guest = await this.#ensureMachine();
    await passKillPoint("addon.machine-started");
    let room: Room | undefined;
    this.command = (await findProcess(guest)) ?? null;
    if (this.command === null) {
      await this.#report("start", `Starting ${title[this.row.kind]}.`);
      const begun = await startProcess(guest, this.engine, this.instance);
      this.command = begun.command;
      room = begun.room;
    }
    await this.#report("answer", `Waiting for ${title[this.row.kind]} to respond to a query.`);
    room = await waitUntilResponsive(guest, this.engine, this.instance, this.command, signal);
    if (!this.row.is_made) {
      await this.engine.ensureAccess(guest, this.instance);
      await passKillPoint("addon.admitted");
    }
    this.#isFull = room.isFull;
    await this.#progress.settled();
    this.#progress = undefined;
    await this.#save({
      status: "running",
      progress: null,
      is_made: true,
      error: room.isFull ? fullText : null,
    });
    this.#setUp(true);
  }

  async #report(step: AddonStep, message: string): Promise<void> {
    await this.#progress?.set(step, spans[step].from, message);
  }

  /** Clears the progress of a start that failed or was interrupted. */
  async #endProgress(): Promise<void> {
    const progress = this.#progress;
    if (!progress) return;
    this.#progress = undefined;
    await progress.settled();
    await writeProgress(this.#addons.app.db, this.id, null);
  }

  async #ensureMachine(): Promise<Guest> {
    const { app } = this.#addons;
    this.machine ??= (await findMachineOf(app.db, this.owner))?.id ?? null;
    const there = this.guest();
    if (there) return there;
    const { name, region, is_made } = this.row;
    const { [this.row.kind]: kind } = title;
    await this.#report("image", `Looking for the image of ${kind}.`);
    const image = await this.#addons.image(this.engine, this.#life.signal, ({ fraction, step }) => {
      void this.#progress?.within("image", spans.image, fraction, `Making the image of ${kind}: ${step}`);
    });
    await this.#report(
      "volume",
      is_made ? "Starting a machine with the volume." : "Creating the volume and starting a machine.",
    );
    const request = requestOf({
      ownerId: this.id,
      image,
      hostname: name,
      extent: extentOf(this.row.size),
      volume: { id: volumeOf(this.row), region, isNew: !is_made },
      privateNetwork: networkOf(this.row, this.engine.port),
    });
    const reservation = await withReclaim(app, () =>
      app.db.transaction().execute((tx) => placeCold(app, tx, request)),
    );
    this.#machineGone = Promise.withResolvers();
    await startReserved(app, reservation);
    this.machine = reservation.row.id;
    return app.machines.connect(this.machine);
  }

  /** Reads the process's output until the process ends, and checks its health meanwhile. */
  async #watch(): Promise<string> {
    const watching = new AbortController();
    const looking = this.#lookRegularly(AbortSignal.any([this.#life.signal, watching.signal]));
    try {
      const record = await this.#readToEnd();
      return record ? describeExit(record) : "The machine ended.";
    } finally {
      watching.abort();
      await looking;
    }
  }

  /** Returns the record of the ended process; undefined if the machine ended. */
  async #readToEnd(): Promise<CommandRecord | undefined> {
    const { signal } = this.#life;
    const { command } = this;
    const output = new Output(this.#addons.app.machines.logs.of(this.id), {
      deployment: this.id,
      source: `${this.machine}/${command}`,
    });
    await output.recover();
    for (;;) {
      signal.throwIfAborted();
      const guest = this.guest();
      if (guest && command !== null) {
        try {
          return await output.read(guest, command, signal);
        } catch (error) {
          signal.throwIfAborted();
          if (kindOf(error) === "not_found" && (await isAlive(guest))) {
            throw new EngineFailure("The process does not exist any more.");
          }
        }
      }
      const isGone = await Promise.race([
        this.#machineGone.promise.then(() => true),
        sleep(askAgainMs, false, { signal, ref: false }),
      ]);
      if (isGone) return undefined;
    }
  }

  async #lookRegularly(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      await sleep(this.#addons.lookEveryMs, undefined, { signal, ref: false }).catch(() => {});
      if (signal.aborted) return;
      await this.#checkHealth().catch((error: unknown) => {
        if (!signal.aborted)
          this.#addons.app.log.debug({ addon: this.id, err: error }, "a health check of an add-on failed");
      });
    }
  }

  async #checkHealth(): Promise<void> {
    const guest = this.guest();
    if (!guest || !this.isUp || this.#isHeld) return;
    const room = await this.engine.health(guest, this.instance).catch(async (error: unknown) => {
      // The database is busy or about to end; its end is detected by `#readToEnd`.
      if (this.isUp && this.row.error === null && !this.#isHeld) await this.#save({ error: unansweredText });
      throw error;
    });
    if (!this.isUp) return;
    if (room.isFull !== this.#isFull) {
      await this.engine.onDiskChange(guest, room);
      this.#isFull = room.isFull;
      if (room.isFull) await this.#addons.notifyOwner(this.row, "limit_reached", "has a full disk", fullText);
    }
    const error = room.isFull ? fullText : null;
    if (this.row.error !== error) await this.#save({ error });
  }

  async #failed(reason: string): Promise<void> {
    const wasRunning = this.row.status === "running";
    const isLost = this.#failures >= notifyAfter;
    const status = wasRunning || isLost ? "failed" : this.row.status;
    const { restart_count } = this.row;
    await this.#save({ status, error: reason, restart_count: restart_count + 1 });
    if (this.#failures === notifyAfter) {
      await this.#addons.notifyOwner(
        this.row,
        "app_crashed",
        "fails to start",
        `${reason} The server retries.`,
      );
    }
  }

  /**
   * Sets the add-on running again after its process could not be stopped. If the process or its machine ended anyway,
   * the supervision detects that.
   */
  async #resumeAfterFailedStop(guest: Guest, command: string): Promise<void> {
    const record = await guest.getCommand(command).catch(() => undefined);
    const hasEnded = record !== undefined && record.status !== "running";
    if (hasEnded || this.command !== command) return;
    this.#isAskedToEnd = false;
    this.#setUp(true);
    await this.#save({ status: "running" }).catch(() => {});
  }

  #setUp(isUp: boolean): void {
    if (this.isUp === isUp) return;
    this.isUp = isUp;
    this.#upChanged.resolve();
    this.#upChanged = Promise.withResolvers();
  }

  async #save(change: AddonChange): Promise<void> {
    const { app } = this.#addons;
    const row = await changeRow(app.db, this.id, { ...change, updated_at: app.clock.now() });
    if (!row) throw new Error("the add-on is deleted");
    this.row = { ...this.row, ...row };
  }
}

const title = { postgres: "PostgreSQL", redis: "Redis" } as const;

const fullText =
  "The disk is full. Stored data is kept; writes are refused until there is space: delete, truncate or drop data.";
const unansweredText = "The database did not respond to a query; it may be busy.";

function sentence(error: unknown): string {
  const isForOwner = error instanceof EngineFailure || error instanceof DomainError;
  return isForOwner ? (error as Error).message : "The add-on could not be started.";
}

async function isAlive(guest: Guest): Promise<boolean> {
  return guest.ping().then(
    () => true,
    () => false,
  );
}

function kindOf(error: unknown): string | undefined {
  return (error as { kind?: string } | null)?.kind;
}
