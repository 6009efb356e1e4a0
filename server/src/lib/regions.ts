/**
 * Regions as they are configured: names a caller may choose among, and where the volumes of each lie. All of them are
 * on this host until there are more hosts; what a region decides today is the disk.
 */
import { isAbsolute } from "node:path";

export interface Region {
  code: string;
  /** For a person. */
  name: string;
  /** Where volumes of the region are kept; null for the data directory. */
  directory: string | null;
}

/** `code`, `code=name`, and either with `@/directory` behind it; undefined where it is none of these. */
export function parseRegion(text: string): Region | undefined {
  const found = /^([a-z0-9][a-z0-9-]{0,31})(?:=([^@,]{1,64}))?(?:@(.+))?$/.exec(text);
  if (!found) return undefined;
  const [, code = "", name = code, directory = null] = found;
  if (directory !== null && !isAbsolute(directory)) return undefined;
  return { code, name, directory };
}

/** The first is the default. Undefined where one is not a region, or two share their code or directory. */
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
  if (!regions) throw new Error("the configuration holds regions");
  return regions;
}
