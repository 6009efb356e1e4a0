/**
 * Regions of the configuration: the names that callers may choose, and the directory of each region's volumes. All
 * regions are on this host until there are more hosts, so today a region only selects the disk.
 */
import { isAbsolute } from "node:path";

export interface Region {
  code: string;
  /** Name shown to people. */
  name: string;
  /** Directory of the region's volumes. Null for the data directory. */
  directory: string | null;
}

/** Parses `code` or `code=name`, each optionally followed by `@/directory`. Undefined for any other text. */
export function parseRegion(text: string): Region | undefined {
  const found = /^([a-z0-9][a-z0-9-]{0,31})(?:=([^@,]{1,64}))?(?:@(.+))?$/.exec(text);
  if (!found) return undefined;
  const [, code = "", name = code, directory = null] = found;
  if (directory !== null && !isAbsolute(directory)) return undefined;
  return { code, name, directory };
}

/**
 * Parses the configured regions. The first region is the default. Undefined if an item is malformed, or two share their
 * code or directory.
 */
export function parseRegions(items: readonly string[]): [Region, ...Region[]] | undefined {
  const [first, ...others] = items.flatMap((item) => parseRegion(item) ?? []);
  if (first === undefined || others.length + 1 < items.length) return undefined;
  const regions: [Region, ...Region[]] = [first, ...others];
  const directories = regions.flatMap(({ directory }) => directory ?? []);
  const areApart =
    new Set(regions.map(({ code }) => code)).size === regions.length &&
    new Set(directories).size === directories.length;
  return areApart ? regions : undefined;
}

export function regionsOf(config: { regions: readonly string[] }): [Region, ...Region[]] {
  const regions = parseRegions(config.regions);
  if (!regions) throw new Error("the configuration has no valid regions");
  return regions;
}
