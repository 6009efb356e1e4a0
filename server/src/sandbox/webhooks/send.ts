/** Sends one POST to a user's address, which is checked at the connection. Redirects are not followed. */
import { request as requestHttp } from "node:http";
import { request as requestHttps } from "node:https";
import type { OpenedHosts } from "#lib/network/addresses.ts";
import {
  AddressError,
  checkAddress as check,
  checkedLookup,
  checkLiteral,
} from "#lib/network/checked-lookup.ts";
import { answerWithinMs } from "./limits.ts";

/** Reason for a failed delivery. The webhook's owner may see its message. */
export class DeliveryError extends Error {
  override readonly name = "DeliveryError";
}

/**
 * Sends the request. Resolves on a 2xx in time, and throws a `DeliveryError` otherwise. The DNS query counts for
 * `owner`.
 */
export function post(
  url: URL,
  opened: OpenedHosts,
  message: { headers: Record<string, string>; body: Buffer; owner: string },
): Promise<void> {
  return new Promise((resolve, reject) => {
    try {
      checkLiteral(url, opened);
    } catch (error) {
      return reject(explain(error as Error));
    }
    const start = url.protocol === "https:" ? requestHttps : requestHttp;
    const request = start(url, {
      method: "POST",
      // Each request gets a new connection, because a kept connection would outlast the check of its address.
      agent: false,
      lookup: checkedLookup(opened, message.owner),
      signal: AbortSignal.timeout(answerWithinMs),
      headers: { ...message.headers, "content-length": String(message.body.length) },
    });
    request.on("error", (error) => reject(explain(error)));
    request.on("response", (response) => {
      const status = response.statusCode ?? 0;
      // The body of the response is not read.
      response.on("error", () => {});
      response.destroy();
      if (status >= 200 && status < 300) resolve();
      else reject(new DeliveryError(`The receiver responded with ${status}.`));
    });
    request.end(message.body);
  });
}

/**
 * Resolves if the server may connect to every address of the URL's host; throws a `DeliveryError` otherwise.
 */
export async function checkAddress(url: URL, opened: OpenedHosts, owner: string): Promise<void> {
  await check(url, opened, owner).catch((error: Error) => {
    throw explain(error);
  });
}

function explain(error: Error): DeliveryError {
  if (error instanceof AddressError) return new DeliveryError(error.message);
  if (error.name === "AbortError" || error.name === "TimeoutError") {
    return new DeliveryError(`No response within ${answerWithinMs / 1000} s.`);
  }
  const { code } = error as NodeJS.ErrnoException;
  return new DeliveryError(`The connection failed${code === undefined ? "" : ` (${code})`}.`);
}
