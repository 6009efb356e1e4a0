/**
 * Stamps in commands: a changed variable that the command may use changes the stamp, and so the layer. A
 * stamp reveals nothing about the values.
 */
import { createHmac, randomBytes } from "node:crypto";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { dirname } from "node:path";
import { type Step, usesIn } from "./uses.ts";

/** Returns a function that makes stamps with the key in `keyFile`. Makes the file if it is missing. */
export async function stampsOf(
  keyFile: string,
  context: string,
  variables: Readonly<Record<string, string>>,
): Promise<(step: Step) => string> {
  await mkdir(dirname(keyFile), { recursive: true, mode: 0o700 });
  await writeFile(keyFile, randomBytes(32), { mode: 0o600, flag: "wx" }).catch((error: unknown) => {
    if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
  });
  const key = await readFile(keyFile);
  const used = await usesIn(context, Object.keys(variables).toSorted());
  return (step) => {
    const pairs = used(step).map((name) => [name, variables[name]]);
    return createHmac("sha256", key).update(JSON.stringify(pairs)).digest("hex").slice(0, 16);
  };
}
