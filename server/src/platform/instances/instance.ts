/**
 * One instance: a machine, and the process in it that serves a version's handler. It starts from nothing, is held still
 * when nobody asks, is written to disk after a while, and goes on from either with what it had in memory. Its moves are
 * done one after the other; what the database says of it comes first, so that a server that ends on the way is followed
 * by one that finds either the instance as it was or nothing of it.
 */
import { setTimeout as sleep } from "node:timers/promises";
import type { App } from "#app.ts";
import { Semaphore } from "#lib/concurrency/semaphore.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { newId } from "#lib/ids.ts";
import { ProgressDeadline } from "#lib/concurrency/progress-deadline.ts";
import { bringUp } from "#machines/placement/start-reserved.ts";
import type { CommandRecord, Guest } from "#machines/host/guest.ts";
import type { LogRing } from "#machines/host/log-rings.ts";
import { findMachineOf, freeze, type Owner, setHeld, thaw } from "#machines/placement/machine-of-owner.ts";
import { type MachineRequest, placeCold, release } from "#machines/placement/placement.ts";
import { withRoom } from "#machines/placement/reclaim.ts";
import {
  abandon,
  bringBack,
  consume,
  drop,
  findSnapshot,
  free,
  keep,
  placeRestored,
  putBack,
  take,
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
import { readerOf } from "./said.ts";
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
/** Time for a handler to load, counted from the last CPU time or output of its process, and in all. */
const readyQuietMs = 30_000;
const readyWholeMs = 150_000;
/** A machine that does not answer is asked again; that it is gone is said by the machine layer. */
const askAgainMs = 250;
/** Of what a process says before it is ready: for whoever deploys it. */
const shownLines = 100;

/** Unexpected end of an instance's process. */
export interface ProcessEnd {
  /** Text for the function's log. */
  said: string;
  isOutOfMemory: boolean;
}

export class Instance {
  readonly id: string;
  readonly version: Runnable;
  readonly launch: Launch;
  readonly owner: Owner & { ownerKind: "function" };
  /** As far as this process has brought it: set before the work that makes it true. */
  state: InstanceState;
  machine: string | null = null;
  /** What its program was begun with, for one request; the function's own may have changed since. */
  timeoutMs: number;
  /** Requests that it is answering. */
  underWay = 0;
  /** When it was last asked, or had something to do behind an answer; when it was held. Milliseconds since 1970. */
  usedAt: number;
  /** Since when something goes on behind its answers. */
  waitsSince: number | null = null;
  /** It was begun with variables or limits that are not its function's any more. */
  isStale = false;
  envSealed: Buffer | null;
  readonly #app: Needs;
  readonly #ring: LogRing;
  readonly #ended: (instance: Instance, end: ProcessEnd) => void;
  readonly #turns = new Semaphore(1);
  readonly #output: Output;
  readonly #firstWords: string[] = [];
  readonly #ready = Promise.withResolvers<"ready" | "ended">();
  readonly #endSaid = Promise.withResolvers<string>();
  #waking: Promise<void> | undefined;
  #reading: { stop: AbortController; done: Promise<void> } | undefined;

  /** `ended`: its process or its machine ended unasked. Of an earlier server's where `row` is given. */
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
      read: readerOf(
        (event) => this.#heard(event),
        (text) => {
          if (this.state === "starting" && this.#firstWords.push(text) > shownLines) this.#firstWords.shift();
        },
      ),
    });
  }

  /** Nothing goes on in it that anybody waits for; what says it does is believed for as long as a request may take. */
  get isQuiet(): boolean {
    if (this.underWay > 0) return false;
    return this.waitsSince === null || this.#now() - this.waitsSince > this.timeoutMs;
  }

  guest(): Guest {
    if (this.machine === null) throw new Error("the instance has no machine");
    return this.#app.machines.connect(this.machine);
  }

  /** It answers when this settles. Fails with `HandlerFailed`; whatever it fails with, `end` it. */
  start(row: ServedRow): Promise<void> {
    return this.#turns.run(async () => {
      const app = this.#app;
      const env = environmentOf(app, row);
      this.timeoutMs = row.timeout_seconds * 1000;
      this.envSealed = sealEnvironment(app, this.id, env);
      const reservation = await withRoom(app, () =>
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
      await bringUp(app, reservation);
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
      if (!(await moveInstance(app.db, this.id, ["starting"], "running"))) throw gone();
      this.state = "running";
      this.usedAt = this.#now();
      await passKillPoint("function.started");
    });
  }

  /** Goes on with what an earlier server left; `machine`: the one it has. */
  async adopt(machine: string | null): Promise<void> {
    this.machine = machine;
    await this.#output.recover();
    if (machine !== null) this.#read();
  }

  /** Held still, at no cost but its memory. The caller has seen that it is quiet. */
  hold(): Promise<void> {
    this.state = "frozen";
    return this.#turns.run(async () => {
      const app = this.#app;
      const machine = await app.db.transaction().execute(async (tx) => {
        if (!(await moveInstance(tx, this.id, ["running"], "frozen", new Date(this.usedAt)))) throw gone();
        return setHeld(tx, this.owner, true);
      });
      if (!machine) throw gone();
      await passKillPoint("function.held");
      await freeze(app, machine);
      this.usedAt = this.#now();
    });
  }

  /** To disk, and its memory is free. What cannot be written down fails, and is to be ended. */
  store(): Promise<void> {
    return this.#turns.run(async () => {
      if (this.state !== "frozen" || this.#waking) return;
      const app = this.#app;
      await this.#stopReading();
      const taken = await take(app, this.owner);
      await passKillPoint("function.taken");
      try {
        await app.db.transaction().execute(async (tx) => {
          const isKept =
            (await moveInstance(tx, this.id, ["frozen"], "asleep")) &&
            (await keep(tx, taken, {
              reason: "deadline",
              storedAt: app.clock.now(),
              expiresAt: null,
            }));
          if (!isKept) throw gone();
        });
      } catch (error) {
        await putBack(app, taken);
        throw error;
      }
      this.state = "asleep";
      this.machine = null;
      await passKillPoint("function.stored");
      free(app, taken);
    });
  }

  /** Runs, with what it had in memory, when this settles. Callers at once share it. What fails is to be ended. */
  wake(): Promise<void> {
    this.#waking ??= this.#turns
      .run(() => (this.state === "asleep" ? this.#restore() : this.#thaw()))
      .finally(() => (this.#waking = undefined));
    return this.#waking;
  }

  async #thaw(): Promise<void> {
    if (this.state !== "frozen") throw gone();
    const app = this.#app;
    const held = await findMachineOf(app.db, this.owner);
    if (!held) throw gone();
    // Side by side: one that was thawed and is not said to be is held again by the next server, as it was.
    await Promise.all([
      thaw(app, held),
      app.db.transaction().execute(async (tx) => {
        if (!(await moveInstance(tx, this.id, ["frozen"], "running"))) throw gone();
        if (!(await setHeld(tx, this.owner, false))) throw gone();
      }),
    ]);
    await passKillPoint("function.thawed");
    this.#isAwake();
  }

  async #restore(): Promise<void> {
    const app = this.#app;
    const snapshot = await findSnapshot(app.db, this.owner);
    if (!snapshot) throw gone();
    const place = await withRoom(app, () =>
      app.db.transaction().execute((tx) => placeRestored(app, tx, snapshot)),
    );
    await passKillPoint("function.restoring");
    await bringBack(app, place);
    const isBack = await app.db
      .transaction()
      .execute(
        async (tx) =>
          (await consume(tx, place.row)) && (await moveInstance(tx, this.id, ["asleep"], "running")),
      );
    if (!isBack) throw gone();
    this.machine = place.row.id;
    await passKillPoint("function.restored");
    drop(app, snapshot.id);
    this.#isAwake();
    this.#read();
  }

  #isAwake(): void {
    this.state = "running";
    this.usedAt = this.#now();
  }

  /** Nothing of it is left: no machine, no snapshot, no row. Safe to call again. */
  end(): Promise<void> {
    this.state = "ending";
    return this.#turns.run(async () => {
      this.state = "ending";
      const app = this.#app;
      const { machine, snapshot } = await app.db.transaction().execute(async (tx) => {
        const left = { machine: await release(tx, this.owner), snapshot: await abandon(tx, this.owner) };
        await deleteInstance(tx, this.id);
        return left;
      });
      await passKillPoint("function.ended");
      await this.#stopReading();
      this.machine = null;
      if (snapshot) drop(app, snapshot.id);
      if (machine) await app.machines.destroy(machine);
    });
  }

  /** Whether its process runs. */
  async isAlive(): Promise<boolean> {
    try {
      return (await this.guest().getCommand(command)).status === "running";
    } catch {
      return false;
    }
  }

  /** How its process ended, once all it said was read; undefined where that takes longer. */
  async lastWords(withinMs: number): Promise<string | undefined> {
    const waited = new AbortController();
    const late = sleep(withinMs, undefined, { signal: waited.signal, ref: false }).catch(() => undefined);
    return Promise.race([this.#endSaid.promise, late]).finally(() => waited.abort());
  }

  /** Its machine ended by itself, and has no row of ours any more. */
  async lost(): Promise<void> {
    this.state = "ending";
    this.machine = null;
    this.#ready.resolve("ended");
    await this.#stopReading();
  }

  /** Lets go of it; machine and process are left as they are. */
  close(): Promise<void> {
    return this.#stopReading();
  }

  async say(text: string): Promise<void> {
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
      // Its variables are its process' alone.
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
    const said = this.#firstWords.join("\n");
    throw new HandlerFailed(said === "" ? `${why} It wrote nothing.` : `${why} It said:\n${said}`);
  }

  #heard(event: Parameters<Parameters<typeof readerOf>[0]>[0]): void {
    if (event.kind === "ready") this.#ready.resolve("ready");
    else if (event.kind === "waits") {
      this.waitsSince = event.isWaiting ? this.#now() : null;
      this.usedAt = this.#now();
    }
  }

  /** What it says, to its end; and that end. */
  #read(): void {
    if (this.#reading) return;
    const stop = new AbortController();
    const done = this.#readToEnd(stop.signal)
      .then((end) => {
        if (end === undefined) return;
        this.#ready.resolve("ended");
        this.#endSaid.resolve(end.said);
        this.#ended(this, end);
      })
      .catch((error: unknown) => {
        if (!stop.signal.aborted) {
          this.#app.log.error({ instance: this.id, err: error }, "a function is not listened to any more");
        }
      });
    this.#reading = { stop, done };
  }

  async #readToEnd(signal: AbortSignal): Promise<ProcessEnd | undefined> {
    for (;;) {
      if (signal.aborted) return undefined;
      try {
        const record = await this.#output.read(this.guest(), command, signal);
        return { said: saidOf(record), isOutOfMemory: record.outOfMemory };
      } catch (error) {
        if (signal.aborted) return undefined;
        const { kind } = error as { kind?: string };
        if (kind === "not_found" && (await answers(this.guest())))
          return { said: "Its process is gone.", isOutOfMemory: false };
      }
      await sleep(askAgainMs, undefined, { signal, ref: false }).catch(() => {});
    }
  }

  async #stopReading(): Promise<void> {
    const reading = this.#reading;
    this.#reading = undefined;
    reading?.stop.abort(new Error("nobody listens any more"));
    await reading?.done;
  }

  #now(): number {
    return this.#app.clock.now().getTime();
  }
}

function saidOf({ exitCode, signal, outOfMemory }: CommandRecord): string {
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

function gone(): Error {
  return new Error("the instance is gone");
}
