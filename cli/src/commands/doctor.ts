/** `kontor doctor`: what this host can do, and what is missing. Exit code 1 where something needed is. */
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
