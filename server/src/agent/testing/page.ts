/** Runs a page of docs/ as printed. */
import { execFile } from "node:child_process";
import { readFileSync } from "node:fs";
import { promisify } from "node:util";
import { expect } from "vitest";

/**
 * Runs the page's `sh` blocks as one script. `values` replace the values of its `name=…` lines. Expects the texts of
 * its `# → …` lines in the output, in this order; `…` matches any text.
 */
export async function runPage(name: string, values: Readonly<Record<string, string>>): Promise<void> {
  const page = readFileSync(new URL(`../../../../docs/${name}`, import.meta.url), "utf8");
  const code = [...page.matchAll(/^```sh\n(.*?)^```$/gms)].map(([, block]) => block ?? "").join("\n");
  let script = code;
  for (const [variable, value] of Object.entries(values)) {
    expect(script, `${name} has no ${variable}=…`).toMatch(new RegExp(`^${variable}=`, "m"));
    script = script.replace(new RegExp(`^${variable}=.*$`, "m"), () => `${variable}='${value}'`);
  }
  const { stdout } = await promisify(execFile)("bash", ["-euo", "pipefail", "-c", script], {
    timeout: 25_000,
  });
  let rest = stdout;
  for (const [, line = ""] of code.matchAll(/^# → (.*)$/gm)) {
    const parts = line.split("…").map((part) => RegExp.escape(part));
    const at = new RegExp(parts.join("[^]*?")).exec(rest);
    expect(at, `no "${line}" in:\n${rest}`).not.toBeNull();
    rest = rest.slice((at?.index ?? 0) + (at?.[0].length ?? 0));
  }
}
