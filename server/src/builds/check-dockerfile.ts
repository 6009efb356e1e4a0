/** Checks a Dockerfile before its build is queued. The build has no context. Pure functions. */
import { RuntimeError } from "@kontor/runtime/driver.ts";
import { readDockerfile } from "@kontor/runtime/oci/dockerfile/dockerfile.ts";

/** Returns the base image of the last stage, or an error text for the owner. */
export function checkDockerfile(source: string): { refused: string } | { base: string } {
  try {
    const lines = readDockerfile(source).text.trim().split("\n");
    const copy = lines.find(isFromContext);
    if (copy !== undefined) {
      const [keyword = ""] = copy.split(" ");
      const cure = "Write or fetch the files in a RUN step, or use COPY --from with an image or a stage";
      return {
        refused: `${keyword} needs files of a build context, and a template is built without one. ${cure}.`,
      };
    }
    return { base: baseOfLastStage(lines) };
  } catch (error) {
    if (error instanceof RuntimeError && error.kind === "image_failed") return { refused: error.message };
    throw error;
  }
}

function isFromContext(line: string): boolean {
  const [, keyword, flags = "", rest = ""] = /^(COPY|ADD) ((?:--\S+\s+)*)(.*)$/.exec(line) ?? [];
  if (keyword === undefined || /(?:^|\s)--from=/.test(flags)) return false;
  const sources = rest
    .replaceAll(/[[\]",]/g, " ")
    .trim()
    .split(/\s+/)
    .slice(0, -1);
  return keyword === "COPY" || !sources.every((word) => /^https?:\/\//.test(word));
}

/** Resolves a stage that is based on an earlier one, by alias or by number. */
function baseOfLastStage(lines: readonly string[]): string {
  const bases = new Map<string, string>();
  let last = "";
  let count = 0;
  for (const line of lines) {
    const [, name, alias] = /^FROM (\S+)(?: AS (\S+))?$/.exec(line) ?? [];
    if (name === undefined) continue;
    last = bases.get(name) ?? name;
    bases.set(String(count), last);
    if (alias !== undefined) bases.set(alias, last);
    count += 1;
  }
  return last;
}
