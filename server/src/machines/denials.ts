/**
 * Records the connections that the egress proxy denied to each machine. Calls and events report them. The record is in
 * memory and bounded, because a machine chooses the names that it dials.
 */
import type { Clock } from "#lib/clock.ts";

export interface DeniedConnection {
  /** `host:port`. A DNS query gives the host name only. */
  target: string;
  /** The proxy's reason, such as `not_allowed`. */
  code: string;
}

export interface DenialWatch {
  /** Distinct targets since the watch started, in order. */
  targets(): string[];
  close(): void;
}

/** Maximum of targets for one call or command. */
export const maxTargets = 20;
/** Maximum of denials kept for one machine. New denials replace the oldest. */
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

  /** Collects denials from now on. A watch may outlive its machine. */
  watch(machine: string): DenialWatch {
    const { watches } = this.#track(machine);
    const targets = new Set<string>();
    watches.add(targets);
    return { targets: () => [...targets], close: () => watches.delete(targets) };
  }

  /** Lists distinct targets denied between two moments, both included. */
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
