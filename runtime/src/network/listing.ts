/** Parses the output of `nft -j -n list` (libnftables-json(5)). Pure. */
import { instanceNames, slotOfAddress } from "./addresses.ts";
import type { NetworkAccess } from "./rules.ts";

type Json = Record<string, unknown>;

/**
 * Returns the state of this instance in `nft -j list ruleset`: the slots with both chains, each slot's network access,
 * and the number of its group.
 */
export function readRuleset(
  instance: number,
  listing: string,
): { chained: Set<number>; access: Map<number, NetworkAccess>; marks: Map<number, number> } {
  const { table } = instanceNames(instance);
  const items = (JSON.parse(listing) as { nftables: Record<string, Json>[] }).nftables;
  const chains = items.flatMap(({ chain }) =>
    chain?.["family"] === "netdev" && chain["table"] === table ? [String(chain["name"])] : [],
  );
  const withChain = (begin: string) =>
    chains.filter((name) => name.startsWith(begin)).map((name) => Number(name.slice(begin.length)));
  const complete = new Set(withChain("to_"));
  const chained = new Set(withChain("from_").filter((slot) => complete.has(slot)));
  const elements = (kind: "set" | "map", name: string): unknown[] => {
    const found = items.find(({ [kind]: it }) => it?.["table"] === table && it["name"] === name)?.[kind];
    return (found?.["elem"] as unknown[] | undefined) ?? [];
  };
  const access = new Map<number, NetworkAccess>();
  for (const address of elements("set", "restricted")) {
    const slot = slotOfAddress(instance, String(address));
    if (slot !== undefined) access.set(slot, { mode: "restricted" });
  }
  const readMarks = (name: string): [number, number][] =>
    elements("set", name).flatMap((element) => {
      const [address, mark] = (element as { concat: [string, number] }).concat;
      const slot = slotOfAddress(instance, address);
      return slot === undefined ? [] : [[slot, Number(mark)]];
    });
  for (const [slot, tenancy] of readMarks("open")) access.set(slot, { mode: "open", tenancy });
  return { chained, access, marks: new Map(readMarks("members")) };
}

/** Returns the number of refused packets by slot, from `nft -j list set … denied`. */
export function readCounters(instance: number, listing: string): Map<number, number> {
  const items = (JSON.parse(listing) as { nftables: Record<string, Json>[] }).nftables;
  const elements = (items.find(({ set }) => set !== undefined)?.["set"]?.["elem"] ?? []) as {
    elem?: { val: string; counter?: { packets: number } };
  }[];
  return new Map(
    elements.flatMap(({ elem }) => {
      const slot = elem === undefined ? undefined : slotOfAddress(instance, elem.val);
      return slot === undefined ? [] : [[slot, elem?.counter?.packets ?? 0] as const];
    }),
  );
}

/** Returns whether `nft -j list tables` holds both tables of the instance. */
export function hasTables(instance: number, listing: string): boolean {
  const items = (JSON.parse(listing) as { nftables: Record<string, Json>[] }).nftables;
  const { table } = instanceNames(instance);
  return items.filter((item) => item["table"]?.["name"] === table).length === 2;
}
