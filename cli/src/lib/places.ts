/** Paths of the product's directory, its Node and the data directory. */
import path from "node:path";

export const productRoot = path.join(import.meta.dirname, "../../..");

export function inProduct(...parts: string[]): string {
  return path.join(productRoot, ...parts);
}

/** Returns `--data`, or else `KONTOR_DATA_DIR`, or else the directory of an installed service. */
export function dataDirectory(option: string | undefined): string {
  return path.resolve(option ?? process.env["KONTOR_DATA_DIR"] ?? "/var/lib/kontor");
}

/** Returns the command line of this call with sudo in front. */
export function asRoot(): string {
  return ["sudo", inProduct("kontor"), ...process.argv.slice(2)].join(" ");
}

export function isRoot(): boolean {
  return process.getuid?.() === 0;
}
