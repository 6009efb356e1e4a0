/**
 * Connections that the egress proxy denied, by machine: for the calls that ran meanwhile, and for events. Kept in memory
 * and bounded, because a machine chooses the names that it dials.
 */
import type { Clock } from "#lib/clock.ts";

export interface DeniedConnection {
  /** `host:port`; a host alone where the machine looked its name up. */
  target: string;
  /** The proxy's reason, such as `not_allowed`. */
  code: string;
}

export interface DenialWatch {
  /** Different targets since the watch began, in order. */
  targets(): string[];
  close(): void;
}

/** Of one call or command. */
export const maxTargets = 20;
/** Of one machine; a loop of retries pushes out older denials. */
const maxRecent = 256;

interface Track {
  recent: { target: string; at: Date }[];
  watches: Set<Set<string>>;
}

export class Denials {
  readonly #clock: Clock;
  readonly #tracks = new Map<string, Track>();
  readonly #listeners: ((machine: string, denied: DeniedConnection) => void)[] = [];

  constructor({ clock }: { clock: Clock }) {
    this.#clock = clock;
  }

  add(machine: string, denied: DeniedConnection): void {
    const { recent, watches } = this.#track(machine);
    recent.push({ target: denied.target, at: this.#clock.now() });
    if (recent.length > maxRecent) recent.shift();
    for (const targets of watches) if (targets.size < maxTargets) targets.add(denied.target);
    for (const listener of this.#listeners) listener(machine, denied);
  }

  /** Collects what is denied from now on; a watch outlives its machine. */
  watch(machine: string): DenialWatch {
    const { watches } = this.#track(machine);
    const targets = new Set<string>();
    watches.add(targets);
    return { targets: () => [...targets], close: () => watches.delete(targets) };
  }

  /** Different targets that were denied from one moment to another, both included. */
  between(machine: string, from: Date, to: Date): string[] {
    const within = this.#tracks.get(machine)?.recent.filter(({ at }) => at >= from && at <= to) ?? [];
    return [...new Set(within.map(({ target }) => target))].slice(0, maxTargets);
  }

  onDenied(listener: (machine: string, denied: DeniedConnection) => void): void {
    this.#listeners.push(listener);
  }

  forget(machine: string): void {
    this.#tracks.delete(machine);
  }

  #track(machine: string): Track {
    const known = this.#tracks.get(machine);
    if (known !== undefined) return known;
    const track: Track = { recent: [], watches: new Set() };
    this.#tracks.set(machine, track);
    return track;
  }
}
