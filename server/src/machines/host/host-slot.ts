/**
 * The number that separates several servers on one host: addresses, interface, table and cgroup names contain it. A
 * data directory keeps its number for as long as the host is up. The claim is a file that only one process can create.
 */
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createHash } from "node:crypto";
import { join } from "node:path";

/** Number of slots. The numbers 60 to 63 are reserved for tests that use the runtime without a server. */
const count = 60;
const claimsDirectory = "/run/kontor/instances";

/** Returns the number of this data directory, or claims a free number for it. */
export function claimHostSlot(dataDir: string, directory = claimsDirectory): number {
  mkdirSync(directory, { recursive: true, mode: 0o700 });
  // An earlier claim has priority over the preferred number, because machines run under the earlier one.
  const claims = readdirSync(directory).filter((name) => /^\d+$/.test(name));
  const earlier = claims.find((name) => readFileSync(join(directory, name), "utf8") === dataDir);
  if (earlier !== undefined) return Number(earlier);
  // The search starts at the directory's hash, so a server normally gets the same number after a reboot.
  const first = createHash("sha256").update(dataDir).digest().readUInt32BE(0) % count;
  for (let step = 0; step < count; step += 1) {
    const instance = (first + step) % count;
    if (claim(join(directory, String(instance)), dataDir)) return instance;
  }
  throw new Error(`All ${count} instance numbers of this host are taken; see ${directory}.`);
}

function claim(file: string, dataDir: string): boolean {
  try {
    writeFileSync(file, dataDir, { flag: "wx", mode: 0o600 });
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
    return readFileSync(file, "utf8") === dataDir;
  }
}
