/**
 * Derives names for models from the names of a server's tools. Providers accept 64 characters of A-Z, a-z, 0-9, - and
 * _, and a server may use any name. Other characters become _, and long names are cut. If two names collide, each
 * changed name gets the beginning of a hash of its original. So the result depends only on the set of names, not on
 * their order.
 */
import { createHash } from "node:crypto";

const nameMax = 64;

/**
 * Returns the name for models of each tool, without the toolset's prefix, by original name. `taken`: names that
 * overrides already use.
 */
export function modelNames(
  toolset: string,
  tools: readonly string[],
  taken: ReadonlySet<string> = new Set(),
): Map<string, string> {
  const most = nameMax - toolset.length - 2;
  const short = new Map(tools.map((name) => [name, name.replaceAll(/[^A-Za-z0-9_-]/g, "_").slice(0, most)]));
  const wanted = Map.groupBy(tools, (name) => short.get(name));
  return new Map(
    tools.map((name) => {
      const plain = short.get(name) ?? "";
      const isAlone = (wanted.get(plain)?.length ?? 0) < 2 && !taken.has(plain);
      const own =
        plain === name || (isAlone && plain.length > 0 && name.length <= most) ? plain : withHash(name, most);
      return [name, own];
    }),
  );
}

function withHash(name: string, most: number): string {
  const end = createHash("sha256").update(name).digest("hex").slice(0, 8);
  return `${name.replaceAll(/[^A-Za-z0-9_-]/g, "_").slice(0, most - end.length - 1)}_${end}`;
}
