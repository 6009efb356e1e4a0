/** What this host itself is reached by: a public address of its own leads to its own services all the same. */
import { networkInterfaces } from "node:os";

/** Listing the interfaces of a host with hundreds of machines takes milliseconds; its own addresses seldom change. */
const KEPT_MS = 5_000;
let kept = { at: -Infinity, addresses: new Set<string>() };

export function ownAddresses(): ReadonlySet<string> {
  if (performance.now() - kept.at > KEPT_MS) {
    const all = Object.values(networkInterfaces()).flatMap((entries) => entries ?? []);
    kept = { at: performance.now(), addresses: new Set(all.map(({ address }) => address)) };
  }
  return kept.addresses;
}
