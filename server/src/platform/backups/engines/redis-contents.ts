/** What a Redis holds, as far as it can be told without holding it up. Pure. */

export interface Held {
  /** Keys in each database; those that have expired and are still there count. */
  counts: Record<string, number>;
  /** Of everything; null where that would have taken too long. */
  digest: string | null;
  /** Of some keys, each its own. */
  sample: Record<string, string>;
}

/** `db0:keys=12,expires=3,avg_ttl=0` in each line. */
export function readKeyspace(info: string): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const [, name = "", keys] of info.matchAll(/^(db\d+):keys=(\d+)/gm)) counts[name] = Number(keys);
  return counts;
}

/** A sentence each; none where they are the same. */
export function heldDifferences(expected: Held, found: Held): string[] {
  const said: string[] = [];
  for (const name of new Set([...Object.keys(expected.counts), ...Object.keys(found.counts)])) {
    const [is, was] = [found.counts[name] ?? 0, expected.counts[name] ?? 0];
    if (is !== was) said.push(`${name} has ${is} keys, not ${was}`);
  }
  if (said.length === 0 && expected.digest !== found.digest) said.push("its keys hold other values");
  const other = Object.entries(expected.sample).filter(
    ([key, digest]) => found.sample[key] !== digest,
  ).length;
  if (other > 0) said.push(`${other} of ${Object.keys(expected.sample).length} keys hold other values`);
  return said;
}
