/** Describes the content of a Redis server without blocking the server for long. Pure functions. */

export interface RedisDescription {
  /** Number of keys by database. Expired keys that Redis has not deleted yet count. */
  counts: Record<string, number>;
  /** Digest of all keys; null if Redis would take too long to compute the digest. */
  digest: string | null;
  /** Digests of some keys, by key. */
  sample: Record<string, string>;
}

/** Parses the numbers of keys. Each line has the form `db0:keys=12,expires=3,avg_ttl=0`. */
export function readKeyspace(info: string): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const [, name = "", keys] of info.matchAll(/^(db\d+):keys=(\d+)/gm)) counts[name] = Number(keys);
  return counts;
}

/** Returns the differences, one sentence each. Empty for equal contents. */
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
