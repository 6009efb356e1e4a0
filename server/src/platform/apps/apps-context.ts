/** What release, sleep and removal use of the room. */
import type { SingleFlight } from "#lib/concurrency/single-flight.ts";
import type { InstanceContext } from "./instance-context.ts";
import type { Running } from "./running/app-instance.ts";

/** The ingress, as a switch uses it. */
export interface Front {
  /** Until nothing is under way in the machine, or that time is over. */
  drained(machine: string, timeoutMs: number): Promise<unknown>;
  /** Proves that a request by that name is answered by that machine; a failure's message is for the app's owner. */
  visit(
    host: string,
    path: string,
    expected: { machine: string; hasProgressed?: () => Promise<boolean>; signal?: AbortSignal },
  ): Promise<unknown>;
}

export interface AppsContext extends InstanceContext {
  readonly waking: SingleFlight<void>;
  /** Every instance in this process, by id. */
  readonly running: Map<string, Running>;
  readonly closing: AbortController;
  readonly front: Front;
  /** The instance that an environment serves, or the one that sleeps in its place. */
  serving(environmentId: string): Running | undefined;
  of(environmentId: string): Running[];
  /** Runs work for which only the end of the server waits. */
  inBackground(whatFailed: string, work: () => Promise<void>): void;
}
