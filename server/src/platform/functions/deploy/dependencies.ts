/**
 * Checks the dependencies of a function: names and versions of packages in the runtime's registry. In the same field,
 * installers also accept addresses, repositories, host paths and aliases. So only names and versions of a known form
 * are valid. Pure functions.
 */
import type { FunctionsTable } from "../tables.ts";

export type Runtime = FunctionsTable["runtime"];
export type Dependencies = Readonly<Record<string, string>>;

export const maxDependencies = 100;
const maxVersionChars = 200;
/** Matches control characters. A line break would start another requirement. */
const control = /\p{Cc}/u;

interface Rules {
  isName: (name: string) => boolean;
  isVersion: (version: string) => boolean;
  name: string;
  version: string;
  /** Returns the normal form of a name. Names with one normal form are the same package. */
  normal: (name: string) => string;
}

/** Returns the first invalid package and its fault; undefined if all packages are valid. */
export function problemIn(
  runtime: Runtime,
  dependencies: Dependencies,
): { name: string; problem: string } | undefined {
  const rules = registries[runtime];
  const seen = new Set<string>();
  for (const [name, version] of Object.entries(dependencies)) {
    if (!rules.isName(name)) return { name, problem: rules.name };
    if (version.length > maxVersionChars || control.test(version) || !rules.isVersion(version))
      return { name, problem: rules.version };
    if (seen.has(rules.normal(name)))
      return {
        name,
        problem: "names a package that is listed under another spelling already; remove one of them",
      };
    seen.add(rules.normal(name));
  }
  return undefined;
}

/** Returns the dependencies by name, so that equal dependencies make equal files. */
export function sortDependencies(dependencies: Dependencies): [name: string, version: string][] {
  return Object.entries(dependencies).toSorted(([a], [b]) => (a < b ? -1 : 1));
}

/** Returns a line of requirements. A bare version is exact; `*` and `latest` allow any version. */
export function pythonRequirement(name: string, version: string): string {
  if (version === "*" || version === "latest") return name;
  const said = withoutSpace(version);
  return `${name}${/^[0-9v]/i.test(said) ? `==${said}` : said}`;
}

const npmPart = String.raw`(?:[a-z0-9~][a-z0-9._~-]*)`;
const npmName = new RegExp(`^(?:@${npmPart}/)?${npmPart}$`, "i");
const npmTag = /^[a-z][a-z0-9_-]{0,63}$/i;
const semver =
  /^(?:[<>]=?|[~^=])?v?(?:\d{1,9}|[xX*])(?:\.(?:\d{1,9}|[xX*])){0,2}(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?$/;

/** True for ranges such as `1.2.3`, `^1.2`, `>=1 <3`, `1.0.0 - 2.0.0` and `1.x || 2.x`. */
function isNpmVersion(version: string): boolean {
  if (npmTag.test(version)) return true;
  return version.split("||").every((range) => {
    // Spaces may stand between an operator and its version.
    const words = range.replaceAll(/([<>]=?|[~^=])\s+/g, "$1").split(/\s+/);
    const given = words.filter((word) => word !== "");
    const isRange = given.length === 3 && given[1] === "-";
    return given.length > 0 && given.every((word, at) => (isRange && at === 1) || semver.test(word));
  });
}

const pypiName =
  /^[a-z0-9](?:[a-z0-9._-]{0,98}[a-z0-9])?(?:\[[a-z0-9_-]{1,50}(?:,[a-z0-9_-]{1,50}){0,9}\])?$/i;
const pep440 =
  /^(?:~=|==|!=|<=|>=|<|>)?v?(?:\d+!)?\d+(?:\.\d+)*(?:\.\*)?(?:[-_.]?(?:a|b|c|rc|alpha|beta|pre)[-_.]?\d*)?(?:[-_.]?post\d*)?(?:[-_.]?dev\d*)?(?:\+[a-z0-9]+(?:[._-][a-z0-9]+)*)?$/i;

/** True for specifiers such as `1.2.3`, `>=1,<3`, `~=2.1` and `==1.*`. */
function isPythonVersion(version: string): boolean {
  if (version === "*" || version === "latest") return true;
  const clauses = version.split(",").map(withoutSpace);
  if (clauses.length > 1 && clauses.some((clause) => /^[0-9v]/i.test(clause))) return false;
  return clauses.every((clause) => pep440.test(clause));
}

/** Returns the form of a version that is checked and written to the file. */
function withoutSpace(version: string): string {
  return version.replaceAll(/\s+/g, "");
}

const registries: Readonly<Record<Runtime, Rules>> = {
  nodejs: {
    isName: (name) => name.length <= 214 && npmName.test(name) && name !== "node_modules",
    isVersion: isNpmVersion,
    name: "must be the name of a package in npm's registry",
    version: 'must be a version, a range or a tag, such as "4.17.21", "^4.17" or "latest"',
    normal: (name) => name,
  },
  python: {
    isName: (name) => pypiName.test(name),
    isVersion: isPythonVersion,
    name: "must be the name of a package in the Python Package Index, with or without extras",
    version: 'must be a version or specifiers, such as "2.32.3", ">=2,<3" or "*"',
    normal: (name) =>
      name
        .replace(/\[.*/, "")
        .toLowerCase()
        .replaceAll(/[-_.]+/g, "-"),
  },
};
