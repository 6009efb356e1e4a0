/**
 * One POST to an address somebody else chose. What is connected to is what was checked: the look-up hands its answer
 * to the socket, so a name that resolves to something else a moment later gains nothing. Redirects are not followed.
 */
import { lookup } from "node:dns";
import { request as requestHttp } from "node:http";
import { request as requestHttps } from "node:https";
import { isIP, type LookupFunction } from "node:net";
import { mayConnect, type OpenedHosts } from "#lib/addresses.ts";
import { answerWithinMs } from "./limits.ts";

/** Its message may be shown to the webhook's owner. */
export class DeliveryError extends Error {
  override readonly name = "DeliveryError";
}

/** Resolves when a 2xx came back in time; throws a `DeliveryError`. */
export function post(
  url: URL,
  opened: OpenedHosts,
  message: { headers: Record<string, string>; body: Buffer },
): Promise<void> {
  return new Promise((resolve, reject) => {
    const host = hostOf(url);
    if (isIP(host) > 0 && !mayConnect(opened, host, host)) return reject(refused());
    const start = url.protocol === "https:" ? requestHttps : requestHttp;
    const request = start(url, {
      method: "POST",
      // A connection of its own: one that is kept alive would outlast the check of its address.
      agent: false,
      lookup: checkedLookup(opened),
      signal: AbortSignal.timeout(answerWithinMs),
      headers: { ...message.headers, "content-length": String(message.body.length) },
    });
    request.on("error", (error) => reject(explain(error)));
    request.on("response", (response) => {
      const status = response.statusCode ?? 0;
      // What it says beyond its status is not read.
      response.on("error", () => {});
      response.destroy();
      if (status >= 200 && status < 300) resolve();
      else reject(new DeliveryError(`The receiver answered ${status}.`));
    });
    request.end(message.body);
  });
}

/** Resolves where every address the URL's host resolves to may be connected to; throws a `DeliveryError`. */
export async function checkAddress(url: URL, opened: OpenedHosts): Promise<void> {
  const host = hostOf(url);
  await new Promise<void>((resolve, reject) => {
    checkedLookup(opened)(host, { all: true }, (error) => (error ? reject(explain(error)) : resolve()));
  });
}

/** All addresses of a name, or an error where one of them may not be connected to. */
function checkedLookup(opened: OpenedHosts): LookupFunction {
  return (host, options, callback) => {
    lookup(host, { ...options, all: true }, (error, addresses) => {
      const [first] = addresses ?? [];
      if (error || !first) return callback(error ?? new DeliveryError("Its host has no address."), "", 0);
      if (!addresses.every(({ address }) => mayConnect(opened, host, address))) {
        return callback(refused(), "", 0);
      }
      if (options.all) callback(null, addresses);
      else callback(null, first.address, first.family);
    });
  };
}

function hostOf(url: URL): string {
  return url.hostname.replace(/^\[|\]$/g, "");
}

function refused(): DeliveryError {
  return new DeliveryError("Its host resolves to a private or internal address.");
}

function explain(error: Error): DeliveryError {
  if (error instanceof DeliveryError) return error;
  if (error.name === "AbortError" || error.name === "TimeoutError") {
    return new DeliveryError(`No answer within ${answerWithinMs / 1000} s.`);
  }
  const { code } = error as NodeJS.ErrnoException;
  return new DeliveryError(`The connection failed${code === undefined ? "" : ` (${code})`}.`);
}
