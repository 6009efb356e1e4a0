/**
 * Reads every owned machine once a second, and keeps the readings in memory for a minute, for charts. Readings come
 * from cgroup files; `runsc events` costs 18 ms and reports another figure.
 */
import type { Logger } from "pino";
import type { MachineStats } from "@kontor/runtime/driver.ts";
import type { Host } from "./host.ts";

export const sampleIntervalSeconds = 1;
export const windowSeconds = 60;

export interface Sample {
  at: Date;
  /** Cores in use since the previous sample. */
  usageCores: number;
  memoryBytes: number;
}

interface Track {
  /** Readings of one machine never overlap, because the later one could return first. */
  isReading?: boolean;
  last: MachineStats | undefined;
  samples: Sample[];
}

export class Sampler {
  readonly #host: Host;
  readonly #log: Logger;
  readonly #tracks = new Map<string, Track>();
  #timer: NodeJS.Timeout | undefined;

  constructor(deps: { host: Host; log: Logger }) {
    this.#host = deps.host;
    this.#log = deps.log;
  }

  watch(machine: string): void {
    if (!this.#tracks.has(machine)) this.#tracks.set(machine, { last: undefined, samples: [] });
    this.#timer ??= setInterval(() => void this.#sample(), sampleIntervalSeconds * 1000).unref();
  }

  forget(machine: string): void {
    this.#tracks.delete(machine);
    if (this.#tracks.size === 0) this.close();
  }

  samples(machine: string): readonly Sample[] {
    return this.#tracks.get(machine)?.samples ?? [];
  }

  latest(machine: string): MachineStats | undefined {
    return this.#tracks.get(machine)?.last;
  }

  close(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  async #sample(): Promise<void> {
    await Promise.all(
      [...this.#tracks].map(async ([machine, track]) => {
        if (track.isReading) return;
        track.isReading = true;
        const stats = await this.#host.stats(machine).catch((error: unknown) => {
          this.#log.debug({ machine, err: error }, "could not read the usage of a machine");
        });
        track.isReading = false;
        if (stats) record(track, stats);
      }),
    );
  }
}

/** Adds a reading. The first reading is only the base of the next one. */
export function record(track: Track, stats: MachineStats): void {
  const seconds = track.last ? (stats.at.getTime() - track.last.at.getTime()) / 1000 : 0;
  if (track.last && seconds > 0) {
    const usageCores = Math.max(0, (stats.cpuSeconds - track.last.cpuSeconds) / seconds);
    track.samples.push({ at: stats.at, usageCores, memoryBytes: stats.memoryBytes });
    if (track.samples.length > windowSeconds) track.samples.shift();
  }
  track.last = stats;
}
