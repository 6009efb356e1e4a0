/**
 * Connects to an address that a caller chose. The look-up passes its checked result to the socket, so a name that
 * resolves to another address a moment later gains nothing. Node skips the look-up when the host is already an address;
 * the caller checks that case with `mayConnect`.
 */
import { isIP, type LookupFunction } from "node:net";
import { callbackify } from "node:util";
import { mayConnect, type OpenedHosts } from "./addresses.ts";
import { hostResolver } from "./name-resolver.ts";

/** The message is safe to show to the caller who gave the address. */
export class AddressError extends Error {
  override readonly name = "AddressError";
}

/**
 * Resolves a name to its addresses, or fails if any of them is forbidden. The look-up counts for the workspace `owner`.
 */
export function checkedLookup(opened: OpenedHosts, owner: string, resolver = hostResolver): LookupFunction {
  const find = async (host: string, family: number | string | undefined) => {
    const found = await resolver.resolve(host, { owner });
    if (!found.every(({ address }) => mayConnect(opened, host, address))) throw privateAddress();
    const wanted = found.filter((one) => isWanted(family, one.family));
    if (wanted.length === 0) throw new AddressError("The host has no address; check its DNS records.");
    return wanted;
  };
  return (host, options, callback) => {
    callbackify(find)(host, options.family, (error, wanted) => {
      if (error) callback(error, "", 0);
      else if (options.all) callback(null, wanted);
      else callback(null, wanted[0]!.address, wanted[0]!.family);
    });
  };
}

/**
 * True if the caller of the look-up accepts addresses of this family. `wanted` has the format of `family` in
 * `net.connect`.
 */
function isWanted(wanted: number | string | undefined, family: number): boolean {
  return !wanted || wanted === family || wanted === `IPv${family}`;
}

/** Resolves if connections to all addresses of the URL's host are allowed. Throws an `AddressError` otherwise. */
export async function checkAddress(url: URL, opened: OpenedHosts, owner: string): Promise<void> {
  const host = hostOf(url);
  await new Promise<void>((resolve, reject) => {
    checkedLookup(opened, owner)(host, { all: true }, (error) =>
      error ? reject(explain(error)) : resolve(),
    );
  });
}

/** Throws an `AddressError` if the host is a literal address to which connections are not allowed. */
export function checkLiteral(url: URL, opened: OpenedHosts): void {
  const host = hostOf(url);
  if (isIP(host) > 0 && !mayConnect(opened, host, host)) throw privateAddress();
}

function hostOf(url: URL): string {
  return url.hostname.replace(/^\[|\]$/g, "");
}

function privateAddress(): AddressError {
  return new AddressError("The host resolves to a private or internal address.");
}

function explain(error: Error): AddressError {
  if (error instanceof AddressError) return error;
  const { code } = error as NodeJS.ErrnoException;
  return new AddressError(`The connection failed${code === undefined ? "" : ` (${code})`}.`);
}
