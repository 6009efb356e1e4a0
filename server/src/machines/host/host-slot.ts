/**
 * The number that keeps several servers on one host apart: addresses, interface, table and cgroup names carry it.
 * A number belongs to a data directory for as long as the host is up; the claim is a file that only one can create.
 */
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createHash } from "node:crypto";
import { join } from "node:path";

/** 60 to 63 are left to tests that drive the runtime without a server. */
const count = 60;
const claimsDirectory = "/run/kontor/instances";

/** The number this data directory has, or a free one that is now its own. */
export function claimInstance(dataDir: string, directory = claimsDirectory): number {
  mkdirSync(directory, { recursive: true, mode: 0o700 });
  // An earlier claim first: what was free by then may not be what comes first now, and machines run under the old one.
  const claims = readdirSync(directory).filter((name) => /^\d+$/.test(name));
  const earlier = claims.find((name) => readFileSync(join(directory, name), "utf8") === dataDir);
  if (earlier !== undefined) return Number(earlier);
  // Starting from the directory's hash, a server gets the same number after a reboot unless somebody else has it.
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
