/** Fetches from providers. Requests go only to checked addresses, have a deadline, and follow no redirects. */
import type { App } from "#app.ts";
import type { Config } from "#config.ts";
import { parseOpenedHosts } from "#lib/network/addresses.ts";
import { AddressError } from "#lib/network/checked-lookup.ts";
import { type Fetch, modelFetch, ownedFetch } from "#agent/models/fetch.ts";
import { SignInFault } from "./sign-in-fault.ts";

/** Deadline of a request and its response. The deadline is short, because a person waits for the response. */
const deadlineMs = 10_000;
/** Maximum size of a response. The largest known metadata is about 10 KB. */
const answerMaxBytes = 256 * 1024;

const fetches = new WeakMap<Config, Fetch>();

/**
 * Returns a fetch for providers. A failed request throws a `SignInFault`. DNS lookups count against the limit of
 * `owner`, a workspace or an issuer.
 */
export function providerFetch({ config }: Pick<App, "config">, owner: string): Fetch {
  const shared = fetches.get(config) ?? modelFetch(parseOpenedHosts(config.allowPrivateHosts));
  fetches.set(config, shared);
  const inner = ownedFetch(shared, owner);
  return async (input, init = {}) => {
    const url = new URL(input instanceof Request ? input.url : input);
    const body = init.body instanceof URLSearchParams ? init.body.toString() : init.body;
    try {
      const response = await inner(url, {
        ...init,
        ...(body === undefined ? {} : { body }),
        signal: AbortSignal.timeout(deadlineMs),
      });
      if (response.status >= 300 && response.status < 400)
        throw new SignInFault(`${url.origin} returned a redirect, which is not followed.`);
      return await limitBody(url, response);
    } catch (error) {
      throw explain(url, error);
    }
  };
}

async function limitBody(url: URL, response: Response): Promise<Response> {
  const { status, headers, body } = response;
  if (body === null) return new Response(null, { status, headers });
  const pieces: Uint8Array[] = [];
  let bytes = 0;
  for await (const piece of body) {
    pieces.push(piece as Uint8Array);
    bytes += (piece as Uint8Array).length;
    // The limit also stops an endless body, even if only the headers of the response matter.
    if (bytes > answerMaxBytes)
      throw new SignInFault(`${url.origin} returned more than ${answerMaxBytes} bytes.`);
  }
  return new Response(Buffer.concat(pieces), { status, headers });
}

function explain(url: URL, error: unknown): SignInFault {
  if (error instanceof SignInFault) return error;
  if (error instanceof AddressError)
    return new SignInFault(`${url.origin} can't be reached: ${error.message}`);
  const { code, name } = error as NodeJS.ErrnoException;
  const why =
    name === "TimeoutError" || name === "AbortError" ? "it took too long" : (code ?? "the connection failed");
  return new SignInFault(`${url.origin} can't be reached: ${why}.`, { cause: error });
}
