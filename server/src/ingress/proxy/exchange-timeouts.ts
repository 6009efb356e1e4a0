/**
 * Timeouts for both sides of an exchange. An instance also serves other visitors, so it is stopped only if it has the
 * whole request and sends nothing in time. A visitor that sends slowly or does not read loses only its own exchange.
 */
import type { ServerResponse } from "node:http";
import { NoResponse, type AwaitedSide } from "./forward.ts";

interface TimedLease {
  timeoutMs: number;
  reportStuck(): void;
}

export class ExchangeTimeouts {
  isStuck = false;
  readonly #response: ServerResponse;
  readonly #lease: TimedLease;
  readonly #ending = new AbortController();
  readonly #slow: NodeJS.Timeout;
  #guest: NodeJS.Timeout | undefined;
  #isOver = false;

  constructor(response: ServerResponse, lease: TimedLease) {
    this.#response = response;
    this.#lease = lease;
    this.#slow = setTimeout(() => {
      if (this.#guest !== undefined) this.#slow.refresh();
      else if (response.headersSent) response.destroy();
      else this.#ending.abort(new NoResponse("too_slow"));
    }, lease.timeoutMs);
  }

  get signal(): AbortSignal {
    return this.#ending.signal;
  }

  readonly onTurn = (whose: AwaitedSide): void => {
    clearTimeout(this.#guest);
    this.#guest = undefined;
    if (whose === "visitor" || this.#isOver) return;
    this.#guest = setTimeout(() => {
      if (this.#response.headersSent) {
        this.#response.destroy();
        return;
      }
      this.isStuck = true;
      this.#lease.reportStuck();
    }, this.#lease.timeoutMs);
  };

  end(): void {
    this.#isOver = true;
    clearTimeout(this.#slow);
    clearTimeout(this.#guest);
  }
}
