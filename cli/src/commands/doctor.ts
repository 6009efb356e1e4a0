/**
 * `kontor doctor`: lists the abilities of this host, present and missing. The exit code is 1 if a required ability is
 * missing.
 */
import { findings } from "../doctor/findings.ts";
import { dataDirectory } from "../lib/places.ts";

export async function doctor(options: { data?: string; json?: boolean }): Promise<void> {
  const found = await findings(dataDirectory(options.data));
  if (options.json) process.stdout.write(`${JSON.stringify(found, null, 2)}\n`);
  else {
    const width = Math.max(...found.map(({ name }) => name.length));
    for (const { name, ok, found: text, advice } of found) {
      const mark = ok === null ? "·" : ok ? "✓" : "✗";
      process.stdout.write(
        `${mark} ${name.padEnd(width)}  ${text}${advice ? `\n  ${"".padEnd(width)}  → ${advice}` : ""}\n`,
      );
    }
  }
  if (found.some(({ ok }) => ok === false)) process.exitCode = 1;
}
