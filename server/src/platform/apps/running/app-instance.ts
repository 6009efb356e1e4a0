/**
 * Supervises an instance: its machine and its process. The output is read to its end, which also reports the end of the
 * process. A process that ends by itself is started again, in the same machine if that still runs. The state of the
 * supervision is in memory only; the next server queries the machine again.
 */
import { setTimeout as sleep } from "node:timers/promises";
import { DomainError } from "#lib/errors.ts";
import { startReserved } from "#machines/placement/start-reserved.ts";
import type { CommandRecord, Guest } from "#machines/host/guest.ts";
import { changeMemory, type Owner } from "#machines/placement/machine-of-owner.ts";
import type { Ending } from "#machines/machine-owner.ts";
import { type MachineRequest, placeCold, type Reservation } from "#machines/placement/placement.ts";
import { withReclaim } from "#machines/placement/reclaim.ts";
import type { InstanceContext } from "../instance-context.ts";
import { type End, endOf, endOfMachine } from "../output/exit-reason.ts";
import { envOf } from "../environment.ts";
import { isCalm, limitFor } from "./memory-growth.ts";
import { Output } from "../output/output.ts";
import { isListening } from "../release/probe.ts";
import { crashesInRow, crashLoopAt, restartDelayMs } from "./restart-backoff.ts";
import type { Traffic } from "../release/route-table.ts";
import type { InstanceState } from "../states.ts";
import { type InstanceRow, update } from "../store.ts";

const mib = 1024 ** 2;
/** Limit of processes, which stops a fork bomb and suffices for a server with its workers. */
const maxProcesses = 512;
/** Retry interval for a machine that does not respond. The machine layer reports a lost machine. */
const retryMs = 250;
/** First and longest interval between checks for a listening port. */
const firstLookMs = 15;
const lastLookMs = 500;

export class Running {
  row: InstanceRow;
  /** State that this server committed last. */
  state: InstanceState;
  machine: string | null = null;
  /** Id of the process in its machine. */
  command: string | null = null;
  /** True once a process listens on the port. */
  isUp = false;
  limitBytes: number;
  /** Bytes of visitors' requests, which do not pass through the machine's network. */
  readonly traffic: Traffic = { rxBytes: 0, txBytes: 0 };
  /** Network counters of the machine when this server first read them. */
  carried: { machine: string; rxBytes: number; txBytes: number } | null = null;
  /** Start of the period of low memory use, in milliseconds since 1970. */
  calmSince: number | null = null;
  /** Resolves when the current process ends. */
  ended = Promise.withResolvers<End>();
  /** True after an out-of-memory notification, so that further ends send none. */
  #notifiedOfMemory = false;
  readonly owner: Owner;
  readonly #apps: InstanceContext;
  readonly #life = new AbortController();
  #machineEnded = Promise.withResolvers<Ending>();
  #upChanged = Promise.withResolvers<void>();
  #supervising: Promise<void> | undefined;

  constructor(apps: InstanceContext, row: InstanceRow) {
    this.#apps = apps;
    this.row = row;
    this.state = row.state;
    this.limitBytes = row.run.size.memoryMb * mib;
    this.owner = { ownerKind: "app", ownerId: row.id };
  }

  get id(): string {
    return this.row.id;
  }

  get environmentId(): string {
    return this.row.environment_id;
  }

  /** The machine's guest. Null without a machine, or while the machine is being destroyed. */
  guest(): Guest | null {
    return this.machine === null ? null : this.#apps.app.machines.connect(this.machine);
  }

  request(): MachineRequest {
    const { image, isolation, size, hostname, workspaceId } = this.row.run;
    return {
      ...this.owner,
      ownerKind: "app",
      shape: {
        poolKey: "",
        template: image,
        resources: {
          vcpus: size.cpu,
          memoryBytes: this.limitBytes,
          diskBytes: this.#apps.app.config.machineDiskGb * 1024 ** 3,
          maxProcesses,
        },
      },
      image: { id: image },
      isolation,
      network: "open",
      privateNetwork: { group: workspaceId },
      hostname,
      // The process gets the variables; the machine gets none.
      env: {},
    };
  }

  async startMachine(reserved?: Reservation): Promise<void> {
    const { app } = this.#apps;
    const reservation =
      reserved ??
      (await withReclaim(app, () =>
        app.db.transaction().execute((tx) => placeCold(app, tx, this.request())),
      ));
    this.#machineEnded = Promise.withResolvers();
    this.command = null;
    try {
      await startReserved(app, reservation);
    } catch (error) {
      // After this line, any caller may remove the row.
      this.machine = null;
      throw error;
    }
    this.machine = reservation.row.id;
  }

  async startProcess(): Promise<void> {
    const { app } = this.#apps;
    const { argv, cwd, user, port } = this.row.run;
    const starts = this.row.starts + 1;
    await this.#save({ starts, started_at: app.clock.now() });
    const command = `app-${starts}`;
    this.ended = Promise.withResolvers();
    await this.guest()?.startCommand({
      id: command,
      argv,
      cwd,
      env: envOf(app, this.row, port),
      ...(user === null ? {} : { user }),
    });
    this.command = command;
  }

  /** Adopts a process that an earlier server started. */
  adopt(machine: { id: string; memory_bytes: number }): void {
    this.machine = machine.id;
    this.limitBytes = machine.memory_bytes;
    if (this.row.starts > 0) this.command = `app-${this.row.starts}`;
  }

  /** Starts the supervision, which restarts the process while the instance is live. Safe to repeat. */
  supervise(first?: Reservation): void {
    this.#supervising ??= this.#supervise(first)
      .catch((error: unknown) => {
        if (!this.#life.signal.aborted) {
          this.#apps.app.log.error({ instance: this.id, err: error }, "an app is no longer supervised");
        }
      })
      .finally(() => (this.#supervising = undefined));
  }

  /** Called when the machine ended by itself. */
  machineEnded(ending: Ending): void {
    this.machine = null;
    this.#setUp(false);
    this.#machineEnded.resolve(ending);
  }

  /** Called when the machine was destroyed. Resolves when the supervision has ended. */
  async machineRemoved(): Promise<void> {
    this.machineEnded({ exit: null, neverStarted: false, cpuSeconds: 0 });
    await this.#supervising;
    this.command = null;
    this.ended = Promise.withResolvers();
  }

  /**
   * Resolves to true once a process listens on the port. Resolves to false when the process ends, or after `ms`
   * milliseconds.
   */
  async whenUp(ms: number): Promise<boolean> {
    const late = sleep(ms, undefined, { ref: false });
    const ended = this.ended.promise.then(() => {});
    while (!this.isUp) {
      const isOver = await Promise.race([
        this.#upChanged.promise.then(() => false),
        ended.then(() => true),
        late.then(() => true),
      ]);
      if (isOver) break;
    }
    return this.isUp;
  }

  /** Stops the supervision, and leaves machine and process running. */
  async close(): Promise<void> {
    this.#life.abort(new Error("the app is no longer supervised"));
    await this.#supervising;
  }

  /** Raises or lowers the memory limit according to use. Runs every second. */
  async adjustMemory(): Promise<void> {
    if (this.machine === null || this.state !== "live") return;
    const stats = this.#apps.app.machines.sampler.latest(this.machine);
    if (!stats) return;
    if (this.carried?.machine !== this.machine) {
      const { networkRxBytes: rxBytes, networkTxBytes: txBytes } = stats;
      this.carried = { machine: this.machine, rxBytes, txBytes };
    }
    const now = Date.now();
    if (!isCalm(this.limitBytes, stats.memoryBytes)) this.calmSince = null;
    else this.calmSince ??= now;
    const calmForMs = this.calmSince === null ? 0 : now - this.calmSince;
    const wanted = limitFor(this.row.run.size, this.limitBytes, stats.memoryBytes, calmForMs);
    if (wanted !== this.limitBytes) await this.#limit(wanted);
  }

  async #limit(bytes: number): Promise<void> {
    if (!(await changeMemory(this.#apps.app, this.owner, bytes))) return;
    this.limitBytes = bytes;
    this.calmSince = null;
  }

  async #supervise(first?: Reservation): Promise<void> {
    let reserved = first;
    for (;;) {
      const end = await this.#once(reserved);
      reserved = undefined;
      if (end === undefined || this.#life.signal.aborted) return;
      this.#setUp(false);
      this.command = null;
      this.ended.resolve(end);
      if (this.state !== "live") return;
      await this.#waitToRestart(end).catch((error: unknown) => this.#waitAnyway(error));
    }
  }

  /**
   * Starts machine and process if they are missing, and waits for the end. Returns undefined if the instance was closed
   * or removed.
   */
  async #once(reserved?: Reservation): Promise<End | undefined> {
    const { signal } = this.#life;
    try {
      if (this.machine === null || this.command === null) {
        await this.#untilReleased();
        const isWanted = await this.#apps.turn(this.environmentId, async () => {
          if (signal.aborted || this.state !== "live") return false;
          if (this.machine === null) await this.startMachine(reserved);
          await this.startProcess();
          return true;
        });
        if (!isWanted) return undefined;
      }
      return await this.#watch();
    } catch (error) {
      if (signal.aborted) return undefined;
      this.#apps.app.log.warn({ instance: this.id, err: error }, "an app could not be started");
      const why = error instanceof DomainError || isRuntimeError(error) ? ` ${(error as Error).message}` : "";
      return { code: null, isOutOfMemory: false, ranMs: 0, message: `It could not be started.${why}` };
    }
  }

  /** Resolves when the workspace is not suspended. */
  async #untilReleased(): Promise<void> {
    const { suspension } = this.#apps.app.machines;
    const { signal } = this.#life;
    while (this.state === "live" && suspension.isHeld(this.row.run.workspaceId))
      await sleep(retryMs, undefined, { signal, ref: false });
  }

  async #waitToRestart(end: End): Promise<void> {
    const { app } = this.#apps;
    const inRow = crashesInRow(this.row.crashes_in_row, end.ranMs);
    const delayMs = restartDelayMs(inRow);
    await this.#apps.writeLog(this, `${end.message} It is restarted in ${delayMs / 1000} s.`);
    const was = this.row;
    await this.#save({
      crashes_in_row: inRow,
      crashed: inRow >= crashLoopAt,
      restart_count: was.restart_count + 1,
      last_exit_code: end.code,
      last_exit: end.message,
    });
    if (inRow === 1) this.#notifiedOfMemory = false;
    const isNews = end.isOutOfMemory && !this.#notifiedOfMemory;
    if (isNews) this.#notifiedOfMemory = true;
    if (inRow === crashLoopAt || isNews) await this.#apps.notifyEnd(this, end);
    // The process needed more memory than its limit, so the limit is raised to the maximum of its size.
    if (end.isOutOfMemory) {
      const wanted = limitFor(this.row.run.size, this.limitBytes, this.limitBytes, 0);
      if (this.machine === null) this.limitBytes = wanted;
      else if (wanted !== this.limitBytes) await this.#limit(wanted).catch(() => {});
    }
    app.log.info({ instance: this.id, inRow, delayMs }, "an app ended and is restarted");
    await sleep(delayMs, undefined, { signal: this.#life.signal, ref: false });
  }

  /**
   * Logs the error and waits for a moment. A failed write, for example without a database, must not stop the
   * supervision.
   */
  async #waitAnyway(error: unknown): Promise<void> {
    const { signal } = this.#life;
    if (signal.aborted) return;
    this.#apps.app.log.warn({ instance: this.id, err: error }, "an app's end could not be stored");
    await sleep(restartDelayMs(1), undefined, { signal, ref: false }).catch(() => {});
  }

  async #watch(): Promise<End> {
    const { signal } = this.#life;
    const startedAt = this.row.started_at?.getTime() ?? 0;
    const ranMs = () => Math.max(0, this.#apps.app.clock.now().getTime() - startedAt);
    const watching = new AbortController();
    const coming = this.#waitForPort(AbortSignal.any([signal, watching.signal]));
    try {
      const record = await this.#readToEnd();
      if (!record)
        return { code: null, isOutOfMemory: false, ranMs: ranMs(), message: "The process was lost." };
      return "exit" in record
        ? endOfMachine(record, this.limitBytes, ranMs())
        : endOf(record, this.limitBytes);
    } finally {
      watching.abort();
      await coming;
    }
  }

  /**
   * Reads output until the process or the machine ends. Returns undefined if the machine has no such process, because
   * it was never started.
   */
  async #readToEnd(): Promise<CommandRecord | Ending | undefined> {
    const { signal } = this.#life;
    const { command } = this;
    const output = new Output(this.#apps.ring(this.environmentId), {
      deployment: this.row.deployment_id,
      source: `${this.id}/${this.machine}/${command}`,
    });
    await output.recover();
    for (;;) {
      signal.throwIfAborted();
      const guest = this.#guestOrNone();
      if (guest && command !== null) {
        try {
          return await output.read(guest, command, signal);
        } catch (error) {
          signal.throwIfAborted();
          if (kindOf(error) === "not_found" && (await isAlive(guest))) return undefined;
        }
      }
      const ending = await Promise.race([
        this.#machineEnded.promise,
        sleep(retryMs, undefined, { signal, ref: false }),
      ]);
      if (ending) return ending;
    }
  }

  #guestOrNone(): Guest | null {
    try {
      return this.guest();
    } catch {
      return null;
    }
  }

  async #waitForPort(signal: AbortSignal): Promise<void> {
    for (let pauseMs = firstLookMs; !signal.aborted; pauseMs = Math.min(lastLookMs, pauseMs * 1.2)) {
      const guest = this.#guestOrNone();
      if (guest && this.state !== "asleep" && (await isListening(guest, this.row.run.port))) {
        if (!signal.aborted) this.#setUp(true);
        return;
      }
      await sleep(pauseMs, undefined, { signal, ref: false }).catch(() => {});
    }
  }

  #setUp(isUp: boolean): void {
    if (this.isUp === isUp) return;
    this.isUp = isUp;
    this.#upChanged.resolve();
    this.#upChanged = Promise.withResolvers();
    this.#apps.routes.seen(this.environmentId);
  }

  async #save(change: Parameters<typeof update>[2]): Promise<void> {
    const row = await update(this.#apps.app.db, this.id, change);
    if (!row) throw new Error("the instance was removed");
    this.row = row;
  }
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

function isRuntimeError(error: unknown): boolean {
  return kindOf(error) !== undefined;
}
