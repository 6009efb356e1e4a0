/** Describes the content of a Redis server without blocking it for long. Pure. */

export interface RedisDescription {
  /** Number of keys in each database; expired keys that still exist count. */
  counts: Record<string, number>;
  /** Digest of all keys; null if computing it would take too long. */
  digest: string | null;
  /** Digests of sampled keys. */
  sample: Record<string, string>;
}

/** Each line is `db0:keys=12,expires=3,avg_ttl=0`. */
export function readKeyspace(info: string): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const [, name = "", keys] of info.matchAll(/^(db\d+):keys=(\d+)/gm)) counts[name] = Number(keys);
  return counts;
}

/** Lists the differences, one sentence each; empty if the contents are equal. */
export function listDifferences(expected: RedisDescription, found: RedisDescription): string[] {
  const sentences: string[] = [];
  for (const name of new Set([...Object.keys(expected.counts), ...Object.keys(found.counts)])) {
    const [is, was] = [found.counts[name] ?? 0, expected.counts[name] ?? 0];
    if (is !== was) sentences.push(`${name} has ${is} keys, not ${was}`);
  }
  if (sentences.length === 0 && expected.digest !== found.digest)
    sentences.push("its keys have different values");
  const other = Object.entries(expected.sample).filter(
    ([key, digest]) => found.sample[key] !== digest,
  ).length;
  if (other > 0)
    sentences.push(`${other} of ${Object.keys(expected.sample).length} keys have different values`);
  return sentences;
}
