/**
 * Finds the written parts of a sparse file, so that reading an image of 100 GiB takes only the time of its
 * content.
 */
import { RuntimeError } from "../driver.ts";
import { run } from "../exec.ts";

export interface Extent {
  /** Start of the extent in bytes; `end` is exclusive. */
  start: number;
  end: number;
}

/** Largest listing in bytes. Each extent is a line of 90 bytes. A truncated listing would hide data. */
const MAX_LISTING_BYTES = 32 * 1024 * 1024;

/**
 * Returns the written extents in order, or the whole file if the filesystem does not report them, or reports too many.
 */
export async function writtenExtents(path: string, sizeBytes: number): Promise<Extent[]> {
  const whole = [{ start: 0, end: sizeBytes }];
  try {
    const options = { maxOutputBytes: MAX_LISTING_BYTES, timeoutMs: 120_000 };
    const { stdout } = await run(["filefrag", "-s", "-b1", "-v", path], options);
    return stdout.length < MAX_LISTING_BYTES ? (parseExtents(stdout) ?? whole) : whole;
  } catch (error) {
    if (error instanceof RuntimeError && error.kind === "failed") return whole;
    throw error;
  }
}

/** Parses the output of `filefrag -b1 -v`. Returns undefined for any other text. */
export function parseExtents(listing: string): Extent[] | undefined {
  if (!/: \d+ extents? found\s*$/.test(listing)) return undefined;
  return Array.from(listing.matchAll(/^ *\d+: +(\d+)\.\. *(\d+):/gm), ([, first, last]) => ({
    start: Number(first),
    end: Number(last) + 1,
  }));
}
