/** The HTTP tool of the dev world: a shop with orders and refunds, without state. */
import type { Exchange } from "./exchange.ts";

const knownNumber = /^[A-Za-z0-9-]{1,40}$/;

/** Responds to `GET /shop/orders/{number}`: an order exists for every number. */
export function getOrder({ path, reply }: Exchange): void {
  const number = path.slice(path.lastIndexOf("/") + 1);
  if (!knownNumber.test(number)) return reply(404, { error: "There is no such order." });
  reply(200, { number, status: "shipped", item: "tea pot", price_eur: 30 });
}

/** Responds to `POST /shop/refunds` with `{"number": "17"}`. */
export function refund({ body, reply }: Exchange): void {
  const number = numberIn(body);
  if (number === undefined)
    return reply(400, { error: 'The body must be JSON with a number, such as {"number": "17"}.' });
  reply(201, { number, refunded_eur: 30 });
}

function numberIn(body: string): string | undefined {
  try {
    const number = (JSON.parse(body) as { number?: unknown } | null)?.number;
    return typeof number === "string" && knownNumber.test(number) ? number : undefined;
  } catch {
    return undefined;
  }
}
