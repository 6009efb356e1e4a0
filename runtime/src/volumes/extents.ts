/** Where in a sparse file something was written: an image of 100 GiB is read as fast as what is in it. */
import { RuntimeError } from "../driver.ts";
import { run } from "../exec.ts";

export interface Extent {
  /** Bytes; `end` is exclusive. */
  start: number;
  end: number;
}

/** A line for each extent has 90 bytes; a listing that was cut off would hide data. */
const MAX_LISTING_BYTES = 32 * 1024 * 1024;

/** In order. The whole of it where the filesystem does not say, or too much. */
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

/** From `filefrag -b1 -v`: undefined for what is no such listing. */
export function parseExtents(listing: string): Extent[] | undefined {
  if (!/: \d+ extents? found\s*$/.test(listing)) return undefined;
  return Array.from(listing.matchAll(/^ *\d+: +(\d+)\.\. *(\d+):/gm), ([, first, last]) => ({
    start: Number(first),
    end: Number(last) + 1,
  }));
}
