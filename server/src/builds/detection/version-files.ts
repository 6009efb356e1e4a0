/** Parses version files of runtimes as their own tools do. */
import { posix } from "node:path";
import { fields, type Inspection, text } from "./inspection.ts";

/**
 * Returns the version in each file. Files in `plain` contain a version, comments after `#` and blank lines. Files such
 * as `.tool-versions` and `mise.toml` contain a version for each tool; `tools` lists the tool's names.
 */
export async function versionFiles(
  view: Inspection,
  directory: string,
  plain: readonly string[],
  tools: readonly string[],
): Promise<[file: string, version: string | undefined][]> {
  const linesOf = async (name: string): Promise<string[]> =>
    ((await view.text(posix.join(directory, name))) ?? "")
      .slice(0, 10_000)
      .split(/\r?\n/)
      .map((line) => line.replace(/#.*$/, "").trim())
      .filter((line) => line !== "");
  const found = await Promise.all(
    plain.map(async (name): Promise<[string, string | undefined]> => [name, (await linesOf(name))[0]]),
  );
  const asdf = (await linesOf(".tool-versions")).map((line) => line.split(/\s+/));
  found.push([".tool-versions", asdf.find(([tool = ""]) => tools.includes(tool))?.[1]]);
  for (const name of ["mise.toml", ".mise.toml"]) {
    if (!(await view.has(posix.join(directory, name)))) continue;
    const inMise = fields((await view.toml(posix.join(directory, name)))["tools"]);
    const entry = tools.map((tool) => inMise[tool]).find((each) => each !== undefined);
    found.push([name, text(Array.isArray(entry) ? entry[0] : entry) ?? text(fields(entry)["version"])]);
  }
  return found;
}

/** Returns the warning for a version that is newer than this host's images. */
export function fromRegistry(runtime: string, image: string, made: readonly (number | string)[]): string {
  return (
    `${image} comes from its registry, and the build fails if this host reaches no registry. ` +
    `Images that this host makes have ${runtime} ${made.join(", ")}: request one of these, or add a Dockerfile`
  );
}
