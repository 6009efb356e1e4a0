/** Resolves the programs that the operator configured for builds instead of those of /usr. */
import { realpath, stat } from "node:fs/promises";
import { RuntimeError } from "../driver.ts";

/** Mode bits that a program needs for other users, because the enclosure's root is not the file's owner. */
const READ_AND_EXECUTE = 0o005;

/** Returns real paths by name. Throws `host_unsupported` for a program that an enclosure cannot start. */
export async function findEngines(
  named: Readonly<Record<string, string | null>>,
): Promise<ReadonlyMap<string, string>> {
  const found = new Map<string, string>();
  for (const [name, given] of Object.entries(named)) {
    if (given === null) continue;
    const path = await realpath(given).catch((cause: unknown) => {
      throw new RuntimeError(
        "host_unsupported",
        `There is no ${name} at ${given}. Correct the setting ${name}_path.`,
        { cause },
      );
    });
    const file = await stat(path);
    if (!file.isFile() || (file.mode & READ_AND_EXECUTE) !== READ_AND_EXECUTE)
      throw new RuntimeError(
        "host_unsupported",
        `Builds cannot start ${given}: it must be a program that every user may read and execute (chmod 755).`,
      );
    found.set(name, path);
  }
  return found;
}
