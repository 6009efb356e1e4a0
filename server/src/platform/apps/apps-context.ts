/** Interface of the running apps for release, sleep and removal. */
import type { SingleFlight } from "#lib/concurrency/single-flight.ts";
import type { InstanceContext } from "./instance-context.ts";
import type { Running } from "./running/app-instance.ts";

/** Functions of the ingress for a switch to another instance. */
export interface Front {
  /** Resolves when no request to the machine is in flight, or after `timeoutMs`. */
  drained(machine: string, timeoutMs: number): Promise<unknown>;
  /** Sends a request to the host. Rejects unless the expected machine responds. The error is for the app's owner. */
  visit(
    host: string,
    path: string,
    expected: { machine: string; hasProgressed?: () => Promise<boolean>; signal?: AbortSignal },
  ): Promise<unknown>;
}

export interface AppsContext extends InstanceContext {
  readonly waking: SingleFlight<void>;
  /** All instances of this process, by id. */
  readonly running: Map<string, Running>;
  readonly closing: AbortController;
  readonly front: Front;
  /** Returns the environment's live or sleeping instance. */
  serving(environmentId: string): Running | undefined;
  of(environmentId: string): Running[];
  /** Starts work in the background. Only the shutdown of the server waits for the work. */
  inBackground(whatFailed: string, work: () => Promise<void>): void;
}
