/**
 * An instance: a machine, and the process in it that serves a version's handler. The machine is frozen when idle, and
 * later stored on disk. In both cases the machine resumes with its memory. Transitions run one after the other. The
 * database is written first, so the next server finds an interrupted instance either in its earlier state or removed.
 */
import { setTimeout as sleep } from "node:timers/promises";
import type { App } from "#app.ts";
import { Semaphore } from "#lib/concurrency/semaphore.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { newId } from "#lib/ids.ts";
import { ProgressDeadline } from "#lib/concurrency/progress-deadline.ts";
import { startReserved } from "#machines/placement/start-reserved.ts";
import type { CommandRecord, Guest } from "#machines/host/guest.ts";
import type { LogRing } from "#machines/host/log-rings.ts";
import { findMachineOf, freeze, type Owner, setFrozen, thaw } from "#machines/placement/machine-of-owner.ts";
import { type MachineRequest, placeCold, release } from "#machines/placement/placement.ts";
import { withReclaim } from "#machines/placement/reclaim.ts";
import {
  detachSnapshot,
  restoreMachine,
  consumeSnapshot,
  deleteSnapshotFiles,
  findSnapshot,
  releaseMachine,
  commitSnapshot,
  placeRestored,
  resumeOriginal,
  captureMachine,
} from "#machines/snapshots/snapshots.ts";
import { Output } from "../apps/output/output.ts";
import { functionUnavailable, HandlerFailed } from "./errors.ts";
import {
  begunTimeoutMs,
  environmentOf,
  type Launch,
  resourcesOf,
  type Runnable,
  sealEnvironment,
} from "./launch.ts";
import { WorkSigns } from "../apps/running/work-signs.ts";
import { makeOutputReader } from "./wrapper-output.ts";
import {
  deleteInstance,
  insertInstance,
  type InstanceRow,
  type InstanceState,
  moveInstance,
  type ServedRow,
} from "./store.ts";

export type Needs = Pick<App, "config" | "db" | "machines" | "secrets" | "clock" | "log">;

const command = "function";
/** Longest time for a handler to load, without CPU time or output of its process, and in all. */
const readyQuietMs = 30_000;
const readyWholeMs = 150_000;
/** Milliseconds before a machine that did not respond is queried again. The machine layer reports a lost machine. */
const retryMs = 250;
/** Lines of a start's output that the owner sees when the handler does not load. */
const shownLines = 100;

/** An end of an instance's process that the server did not request. */
export interface ProcessEnd {
  /** Message for the function's log. */
  message: string;
  isOutOfMemory: boolean;
}

export class Instance {
  readonly id: string;
  readonly version: Runnable;
  readonly launch: Launch;
  readonly owner: Owner & { ownerKind: "function" };
  /** Current state, which is set before the work that leads to the state. */
  state: InstanceState;
  machine: string | null = null;
  /** Timeout of a request, from the start of the process. The function's own setting may have changed since. */
  timeoutMs: number;
  /** Number of requests in flight. */
  inFlight = 0;
  /** Time of the last request, background work or freeze, in milliseconds since 1970. */
  usedAt: number;
  /** Time since which background work runs after a response, in milliseconds since 1970. */
  waitsSince: number | null = null;
  /** True if variables or limits have changed since the start of the process. */
  isStale = false;
  envSealed: Buffer | null;
  readonly #app: Needs;
  readonly #ring: LogRing;
  readonly #ended: (instance: Instance, end: ProcessEnd) => void;
  readonly #turns = new Semaphore(1);
  readonly #output: Output;
  readonly #earlyOutput: string[] = [];
  readonly #ready = Promise.withResolvers<"ready" | "ended">();
  readonly #endMessage = Promise.withResolvers<string>();
  #waking: Promise<void> | undefined;
  #reading: { stop: AbortController; done: Promise<void> } | undefined;

  /**
   * `ended` is called when the process or the machine has ended by itself. `row` is that of an instance from an earlier
   * server.
   */
  constructor(deps: {
    app: Needs;
    version: Runnable;
    launch: Launch;
    ring: LogRing;
    row?: InstanceRow;
    ended: (instance: Instance, end: ProcessEnd) => void;
  }) {
    const { app, version, row } = deps;
    this.#app = app;
    this.version = version;
    this.launch = deps.launch;
    this.#ring = deps.ring;
    this.#ended = deps.ended;
    this.id = row?.id ?? newId("fni_");
    this.state = row?.state ?? "starting";
    this.envSealed = row?.env_sealed ?? null;
    this.timeoutMs = row ? begunTimeoutMs(app, row) : 0;
    this.usedAt = (row?.last_used_at ?? app.clock.now()).getTime();
    this.owner = { ownerKind: "function", ownerId: this.id };
    this.#output = new Output(this.#ring, {
      deployment: version.id,
      source: this.id,
      read: makeOutputReader(
        (event) => this.#onEvent(event),
        (text) => {
          if (this.state === "starting" && this.#earlyOutput.push(text) > shownLines)
            this.#earlyOutput.shift();
        },
      ),
    });
  }

  /**
   * True if no request and no background work is in flight. Reported background work counts for at most a request's
   * timeout.
   */
  get isQuiet(): boolean {
    if (this.inFlight > 0) return false;
    return this.waitsSince === null || this.#now() - this.waitsSince > this.timeoutMs;
  }

  guest(): Guest {
    if (this.machine === null) throw new Error("the instance has no machine");
    return this.#app.machines.connect(this.machine);
  }

  /**
   * Starts machine and process. Resolves when the instance serves requests. Rejects with `HandlerFailed` or another
   * error; the caller then calls `end`.
   */
  start(row: ServedRow): Promise<void> {
    return this.#turns.run(async () => {
      const app = this.#app;
      const env = environmentOf(app, row);
      this.timeoutMs = row.timeout_seconds * 1000;
      this.envSealed = sealEnvironment(app, this.id, env);
      const reservation = await withReclaim(app, () =>
        app.db.transaction().execute(async (tx) => {
          const inserted = await insertInstance(tx, {
            id: this.id,
            function_id: this.version.function_id,
            version_id: this.version.id,
            env_sealed: this.envSealed,
            created_at: app.clock.now(),
          });
          if (!inserted) throw functionUnavailable("it is being deleted.");
          return placeCold(app, tx, this.#request(row));
        }),
      );
      await passKillPoint("function.placed");
      await startReserved(app, reservation);
      this.machine = reservation.row.id;
      await passKillPoint("function.booted");
      const { argv, cwd, user, port } = this.launch;
      await this.guest().startCommand({
        id: command,
        argv,
        cwd,
        env: { ...this.launch.env, ...env, PORT: String(port) },
        ...(user === undefined ? {} : { user }),
      });
      this.#read();
      await this.#whenReady();
      if (!(await moveInstance(app.db, this.id, ["starting"], "running"))) throw removedError();
      this.state = "running";
      this.usedAt = this.#now();
      await passKillPoint("function.started");
    });
  }

  /** Adopts the instance of an earlier server. `machine` is the id of its machine. */
  async adopt(machine: string | null): Promise<void> {
    this.machine = machine;
    await this.#output.recover();
    if (machine !== null) this.#read();
  }

  /** Freezes the machine, which then costs memory only. The caller has checked that the instance is quiet. */
  freeze(): Promise<void> {
    this.state = "frozen";
    return this.#turns.run(async () => {
      const app = this.#app;
      const machine = await app.db.transaction().execute(async (tx) => {
        if (!(await moveInstance(tx, this.id, ["running"], "frozen", new Date(this.usedAt))))
          throw removedError();
        return setFrozen(tx, this.owner, true);
      });
      if (!machine) throw removedError();
      await passKillPoint("function.held");
      await freeze(app, machine);
      this.usedAt = this.#now();
    });
  }

  /** Stores the instance on disk, which frees its memory. Rejects if that fails; the caller then calls `end`. */
  store(): Promise<void> {
    return this.#turns.run(async () => {
      if (this.state !== "frozen" || this.#waking) return;
      const app = this.#app;
      await this.#stopReading();
      const taken = await captureMachine(app, this.owner);
      await passKillPoint("function.taken");
      try {
        await app.db.transaction().execute(async (tx) => {
          const isKept =
            (await moveInstance(tx, this.id, ["frozen"], "asleep")) &&
            (await commitSnapshot(tx, taken, {
              reason: "deadline",
              storedAt: app.clock.now(),
              expiresAt: null,
            }));
          if (!isKept) throw removedError();
        });
      } catch (error) {
        await resumeOriginal(app, taken);
        throw error;
      }
      this.state = "asleep";
      this.machine = null;
      await passKillPoint("function.stored");
      releaseMachine(app, taken);
    });
  }

  /**
   * Resumes the process with its memory. Concurrent callers share a wake. Rejects if the wake fails; the caller then
   * calls `end`.
   */
  wake(): Promise<void> {
    this.#waking ??= this.#turns
      .run(() => (this.state === "asleep" ? this.#restore() : this.#thaw()))
      .finally(() => (this.#waking = undefined));
    return this.#waking;
  }

  async #thaw(): Promise<void> {
    if (this.state !== "frozen") throw removedError();
    const app = this.#app;
    const held = await findMachineOf(app.db, this.owner);
    if (!held) throw removedError();
    // The thaw and the row's update run in parallel. If the update fails after the thaw, the next server freezes the
    // machine again.
    await Promise.all([
      thaw(app, held),
      app.db.transaction().execute(async (tx) => {
        if (!(await moveInstance(tx, this.id, ["frozen"], "running"))) throw removedError();
        if (!(await setFrozen(tx, this.owner, false))) throw removedError();
      }),
    ]);
    await passKillPoint("function.thawed");
    this.#isAwake();
  }

  async #restore(): Promise<void> {
    const app = this.#app;
    const snapshot = await findSnapshot(app.db, this.owner);
    if (!snapshot) throw removedError();
    const place = await withReclaim(app, () =>
      app.db.transaction().execute((tx) => placeRestored(app, tx, snapshot)),
    );
    await passKillPoint("function.restoring");
    await restoreMachine(app, place);
    const isBack = await app.db
      .transaction()
      .execute(
        async (tx) =>
          (await consumeSnapshot(tx, place.row)) && (await moveInstance(tx, this.id, ["asleep"], "running")),
      );
    if (!isBack) throw removedError();
    this.machine = place.row.id;
    await passKillPoint("function.restored");
    deleteSnapshotFiles(app, snapshot.id);
    this.#isAwake();
    this.#read();
  }

  #isAwake(): void {
    this.state = "running";
    this.usedAt = this.#now();
  }

  /** Removes machine, snapshot and row of the instance. Safe to repeat. */
  end(): Promise<void> {
    this.state = "ending";
    return this.#turns.run(async () => {
      this.state = "ending";
      const app = this.#app;
      const { machine, snapshot } = await app.db.transaction().execute(async (tx) => {
        const left = {
          machine: await release(tx, this.owner),
          snapshot: await detachSnapshot(tx, this.owner),
        };
        await deleteInstance(tx, this.id);
        return left;
      });
      await passKillPoint("function.ended");
      await this.#stopReading();
      this.machine = null;
      if (snapshot) deleteSnapshotFiles(app, snapshot.id);
      if (machine) await app.machines.destroy(machine);
    });
  }

  /** True if the process runs. */
  async isAlive(): Promise<boolean> {
    try {
      return (await this.guest().getCommand(command)).status === "running";
    } catch {
      return false;
    }
  }

  /**
   * Returns the end of the process as a text, once all output is read. Returns undefined if that takes longer than
   * `withinMs`.
   */
  async describeEnd(withinMs: number): Promise<string | undefined> {
    const waited = new AbortController();
    const late = sleep(withinMs, undefined, { signal: waited.signal, ref: false }).catch(() => undefined);
    return Promise.race([this.#endMessage.promise, late]).finally(() => waited.abort());
  }

  /** Called after the machine has ended by itself and its row was deleted. */
  async lost(): Promise<void> {
    this.state = "ending";
    this.machine = null;
    this.#ready.resolve("ended");
    await this.#stopReading();
  }

  /** Stops the supervision, and leaves machine and process running. */
  close(): Promise<void> {
    return this.#stopReading();
  }

  async writeLog(text: string): Promise<void> {
    await this.#ring.append([{ at: this.#now(), stream: "system", text, deployment: this.version.id }]);
  }

  #request(row: ServedRow): MachineRequest {
    return {
      ...this.owner,
      shape: { poolKey: "", template: this.version.image_id, resources: resourcesOf(row) },
      image: { id: this.version.image_id },
      network: "open",
      privateNetwork: { group: row.workspace_id },
      hostname: row.name,
      // The process gets the variables; the machine gets none.
      env: {},
    };
  }

  async #whenReady(): Promise<void> {
    const signs = new WorkSigns(this.#app, { machine: this.machine, command, guest: () => this.guest() });
    using deadline = new ProgressDeadline({
      quietMs: readyQuietMs,
      wholeMs: readyWholeMs,
      hasProgressed: async () => {
        const { usedCpu, wrote } = await signs.read();
        return usedCpu || wrote;
      },
    });
    const late = new Promise<"late">((resolve) => {
      deadline.signal.addEventListener("abort", () => resolve("late"), { once: true });
    });
    const outcome = await Promise.race([this.#ready.promise, late]);
    if (outcome === "ready") return;
    const why =
      outcome === "late"
        ? `The handler was not loaded within ${deadline.seconds} s.`
        : "The handler could not be loaded.";
    const message = this.#earlyOutput.join("\n");
    throw new HandlerFailed(
      message === "" ? `${why} The handler wrote no output.` : `${why} Output:\n${message}`,
    );
  }

  #onEvent(event: Parameters<Parameters<typeof makeOutputReader>[0]>[0]): void {
    if (event.kind === "ready") this.#ready.resolve("ready");
    else if (event.kind === "waits") {
      this.waitsSince = event.isWaiting ? this.#now() : null;
      this.usedAt = this.#now();
    }
  }

  /** Reads the output until the process ends, and then calls `ended`. */
  #read(): void {
    if (this.#reading) return;
    const stop = new AbortController();
    const done = this.#readToEnd(stop.signal)
      .then((end) => {
        if (end === undefined) return;
        this.#ready.resolve("ended");
        this.#endMessage.resolve(end.message);
        this.#ended(this, end);
      })
      .catch((error: unknown) => {
        if (!stop.signal.aborted) {
          this.#app.log.error(
            { instance: this.id, err: error },
            "the output of a function is no longer read",
          );
        }
      });
    this.#reading = { stop, done };
  }

  async #readToEnd(signal: AbortSignal): Promise<ProcessEnd | undefined> {
    for (;;) {
      if (signal.aborted) return undefined;
      try {
        const record = await this.#output.read(this.guest(), command, signal);
        return { message: describeExit(record), isOutOfMemory: record.outOfMemory };
      } catch (error) {
        if (signal.aborted) return undefined;
        const { kind } = error as { kind?: string };
        if (kind === "not_found" && (await answers(this.guest())))
          return { message: "The function's process was lost.", isOutOfMemory: false };
      }
      await sleep(retryMs, undefined, { signal, ref: false }).catch(() => {});
    }
  }

  async #stopReading(): Promise<void> {
    const reading = this.#reading;
    this.#reading = undefined;
    reading?.stop.abort(new Error("the output is no longer read"));
    await reading?.done;
  }

  #now(): number {
    return this.#app.clock.now().getTime();
  }
}

function describeExit({ exitCode, signal, outOfMemory }: CommandRecord): string {
  if (outOfMemory) return "The function's process ran out of memory.";
  if (signal === null) return `The function's process ended with exit code ${exitCode}.`;
  return `The function's process was ended by signal ${signal}.`;
}

function answers(guest: Guest): Promise<boolean> {
  return guest.ping().then(
    () => true,
    () => false,
  );
}

function removedError(): Error {
  return new Error("the instance was removed");
}
