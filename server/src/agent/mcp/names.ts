/**
 * What models call a server's tools. Providers take 64 of A-Z, a-z, 0-9, - and _, and a server may call its tools
 * anything: other characters become _, what is too long is cut, and where two would be one by that, those that were
 * changed get the beginning of a hash of their own name. So a name hangs on the names alone, in whatever order they come.
 */
import { createHash } from "node:crypto";

const nameMax = 64;

/** Without the toolset's name before them, by the server's own name of each. `taken`: those that were chosen for tools. */
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
        plain === name || (isAlone && plain.length > 0 && name.length <= most) ? plain : hashed(name, most);
      return [name, own];
    }),
  );
}

function hashed(name: string, most: number): string {
  const end = createHash("sha256").update(name).digest("hex").slice(0, 8);
  return `${name.replaceAll(/[^A-Za-z0-9_-]/g, "_").slice(0, most - end.length - 1)}_${end}`;
}
