/** The webhook receiver of the dev world accepts every delivery, prints it, and lists the newest. */
import type { Exchange } from "./exchange.ts";

interface Delivery {
  received_at: string;
  path: string;
  /** Headers that identify or sign the delivery. */
  headers: Record<string, string>;
  body: string;
}

/** Largest number of deliveries in the list; older deliveries are evicted. */
const deliveriesMax = 100;
const bodyMaxCharacters = 64 * 1024;
const printedMaxCharacters = 2_000;
const shownHeader = /^(?:content-type|x-service-|x-hub-|webhook-)/;

export class Hooks {
  readonly #deliveries: Delivery[] = [];
  readonly #print: (line: string) => void;

  constructor(print: (line: string) => void) {
    this.#print = print;
  }

  receive({ path, headers, body, reply }: Exchange): void {
    const shown = Object.entries(headers).flatMap(([name, value]): [string, string][] =>
      shownHeader.test(name) ? [[name, String(value)]] : [],
    );
    const received_at = new Date().toISOString();
    const kept = body.slice(0, bodyMaxCharacters);
    this.#deliveries.unshift({ received_at, path, headers: Object.fromEntries(shown), body: kept });
    this.#deliveries.splice(deliveriesMax);
    // The body is printed as JSON, because control characters of the sender would reach the terminal.
    const line = `${path} ${JSON.stringify(body.slice(0, printedMaxCharacters))}`;
    this.#print(`${received_at} ${line.replaceAll(/[\u007f-\u009f]/g, "\ufffd")}`);
    reply(200, { received: true });
  }

  /** Lists the deliveries, newest first. */
  list({ reply }: Exchange): void {
    reply(200, { deliveries: this.#deliveries });
  }
}
