/**
 * Connecting to an address that a caller chose. What is connected to is what was checked: the look-up hands its answer
 * to the socket, so a name that resolves to something else a moment later gains nothing. A look-up is not asked where
 * the host is an address already: whoever connects checks that with `mayConnect` first.
 */
import { lookup } from "node:dns";
import { isIP, type LookupFunction } from "node:net";
import { mayConnect, type OpenedHosts } from "./addresses.ts";

/** Its message may be shown to whoever gave the address. */
export class AddressError extends Error {
  override readonly name = "AddressError";
}

/** All addresses of a name, or an error where one of them may not be connected to. */
export function checkedLookup(opened: OpenedHosts): LookupFunction {
  return (host, options, callback) => {
    lookup(host, { ...options, all: true }, (error, addresses) => {
      const [first] = addresses ?? [];
      if (error || !first) return callback(error ?? new AddressError("Its host has no address."), "", 0);
      if (!addresses.every(({ address }) => mayConnect(opened, host, address))) {
        return callback(privateAddress(), "", 0);
      }
      if (options.all) callback(null, addresses);
      else callback(null, first.address, first.family);
    });
  };
}

/** Resolves where every address the URL's host resolves to may be connected to; throws an `AddressError`. */
export async function checkAddress(url: URL, opened: OpenedHosts): Promise<void> {
  const host = hostOf(url);
  await new Promise<void>((resolve, reject) => {
    checkedLookup(opened)(host, { all: true }, (error) => (error ? reject(explain(error)) : resolve()));
  });
}

/** Throws an `AddressError` where the host is an address that may not be connected to. */
export function checkLiteral(url: URL, opened: OpenedHosts): void {
  const host = hostOf(url);
  if (isIP(host) > 0 && !mayConnect(opened, host, host)) throw privateAddress();
}

function hostOf(url: URL): string {
  return url.hostname.replace(/^\[|\]$/g, "");
}

function privateAddress(): AddressError {
  return new AddressError("Its host resolves to a private or internal address.");
}

function explain(error: Error): AddressError {
  if (error instanceof AddressError) return error;
  const { code } = error as NodeJS.ErrnoException;
  return new AddressError(`The connection failed${code === undefined ? "" : ` (${code})`}.`);
}
