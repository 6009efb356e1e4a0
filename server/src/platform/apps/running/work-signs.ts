/** Detects work of a starting app or function by the CPU time of its machine and the output of its process. */
import type { App } from "#app.ts";
import type { Guest } from "#machines/host/guest.ts";

/**
 * CPU cores above which a process works. Idle apps with timers use less. Starting apps get more, even on a host at ten
 * times its load.
 */
const minCores = 0.03;

export interface Work {
  usedCpu: boolean;
  wrote: boolean;
}

/** Functions that read a process's current values. */
interface Process {
  readonly machine: string | null;
  readonly command: string | null;
  guest(): Pick<Guest, "getCommand"> | null;
}

export class WorkSigns {
  readonly #machines: App["machines"];
  readonly #process: Process;
  #cpu: { at: number; seconds: number } | undefined;
  #outputBytes: number | undefined;

  constructor({ machines }: Pick<App, "machines">, process: Process) {
    this.#machines = machines;
    this.#process = process;
  }

  /** Returns the work since the last call. A machine that does not respond counts as idle. */
  async read(): Promise<Work> {
    const [usedCpu, wrote] = await Promise.all([this.#readCpu(), this.#readOutput()]);
    return { usedCpu, wrote };
  }

  async #readCpu(): Promise<boolean> {
    const { machine } = this.#process;
    if (machine === null) return false;
    const stats = await this.#machines.host.stats(machine).catch(() => undefined);
    if (!stats) return false;
    const last = this.#cpu;
    const now = { at: stats.at.getTime(), seconds: stats.cpuSeconds };
    this.#cpu = now;
    if (!last || now.at <= last.at) return false;
    return now.seconds - last.seconds >= (minCores * (now.at - last.at)) / 1000;
  }

  async #readOutput(): Promise<boolean> {
    const { command } = this.#process;
    if (command === null) return false;
    const last = this.#outputBytes;
    const record = await Promise.resolve()
      .then(() => this.#process.guest()?.getCommand(command))
      .catch(() => undefined);
    if (!record) return false;
    this.#outputBytes = record.outputBytes;
    return record.outputBytes > (last ?? 0);
  }
}
