/**
 * Calls of one connection that may send a question to a person. Several calls share a connection, and the client
 * library reports a question without its call. The question arrives in the asynchronous context of its call, because
 * servers send it within the response to that call. A question outside of any response belongs to the only call in
 * flight, if there is exactly one. Otherwise the question has no call.
 */
import { AsyncLocalStorage } from "node:async_hooks";
import type { ElicitResult } from "@modelcontextprotocol/client";

/**
 * Passes a question to a person, and resolves to the answer. `params` is the question as the server sent it. `signal`
 * is aborted when the server withdraws the question.
 */
export type Asker = (params: unknown, signal: AbortSignal) => Promise<ElicitResult>;

export class AskingCalls {
  readonly #context = new AsyncLocalStorage<Asker>();
  readonly #inFlight = new Set<Asker>();

  async run<T>(ask: Asker | undefined, work: () => Promise<T>): Promise<T> {
    if (!ask) return work();
    this.#inFlight.add(ask);
    try {
      return await this.#context.run(ask, work);
    } finally {
      this.#inFlight.delete(ask);
    }
  }

  /**
   * Returns the asker of the call in whose asynchronous context this runs. Returns undefined if the call is over or
   * unknown.
   */
  current(): Asker | undefined {
    const own = this.#context.getStore();
    if (own) return this.#inFlight.has(own) ? own : undefined;
    return this.#inFlight.size === 1 ? [...this.#inFlight][0] : undefined;
  }
}
