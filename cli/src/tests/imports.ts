/**
 * The graph of imports between files of the repository, read from their text. `kontor check --changed` uses it to find
 * the tests that a change reaches. The project `pure` uses it to find the tests without a database.
 */
import path from "node:path";

const specifier =
  /(import|export)(\s+type)?\b[^"'`;]*?\bfrom\s*"([^"\n]+)"|"((?:\.{1,2}\/|#|@kontor\/)[^"\s]+)"/g;

/** Returns the files that a file imports, without packages. */
export function importsIn(source: string, file: string): string[] {
  const targets = [...source.matchAll(specifier)].flatMap(([, , isType, from, other]) =>
    isType ? [] : (resolve(from ?? other ?? "", file) ?? []),
  );
  return [...new Set(targets)];
}

function resolve(name: string, file: string): string | undefined {
  if (name.startsWith("#")) return `server/src/${name.slice(1)}`;
  if (name.startsWith(".")) return path.join(path.dirname(file), name);
  return /^@kontor\/(\w+)\/(.+)$/.exec(name)?.slice(1).join("/src/");
}

export type ImportGraph = ReadonlyMap<string, readonly string[]>;

/**
 * Returns the files that import one of `changed`, directly or through other files, with the number of imports between.
 * Files with 0 are `changed` themselves. The search includes a boundary, but not the files that import it.
 */
export function findDependents(
  graph: ImportGraph,
  changed: readonly string[],
  isBoundary: (file: string) => boolean = () => false,
): Map<string, number> {
  const importers = new Map<string, string[]>();
  for (const [file, targets] of graph) {
    for (const target of targets) importers.set(target, [...(importers.get(target) ?? []), file]);
  }
  const distances = new Map(changed.map((file) => [file, 0]));
  // A map keeps the order of insertion, also for entries added during the iteration, so the nearest files come first.
  for (const [file, distance] of distances) {
    if (distance > 0 && isBoundary(file)) continue;
    for (const importer of importers.get(file) ?? []) {
      if (!distances.has(importer)) distances.set(importer, distance + 1);
    }
  }
  return distances;
}
