/**
 * Detects how to make an image of a repository. The author of the checkout may be hostile: detection runs no file of it
 * and follows no link out of it. A file that does not parse causes only a warning. Precedence: the repository's own
 * Dockerfile, then the `web` line of its Procfile, then the frameworks of `frameworks.ts`. Every decision adds a
 * sentence of evidence, and every doubt a warning. `recipe.ts` writes the Dockerfile.
 */
import { posix } from "node:path";
import { maxCommandLength } from "./dockerfile.ts";
import { findFiles } from "./files.ts";
import {
  type ForeignFile,
  foreignFiles,
  isPartOf,
  jekyllFile,
  warnOfConfigurationNotFollowed,
} from "./foreign.ts";
import { type Candidate, ranks, type Runtime, type BuildSpec, type DetectionSettings } from "./candidate.ts";
import { findGo } from "./go.ts";
import { Inspection, plainPath, strings } from "./inspection.ts";
import type { Overrides } from "./plan.ts";
import { findNode } from "./node.ts";
import { findPython } from "./python.ts";
import type { Tree } from "./tree.ts";

/**
 * Result of a detection. A field is null if nothing was detected or if it does not apply. Commands are lines of `sh`.
 */
export interface Analysis extends Omit<BuildSpec, "runtime" | "port" | "plan"> {
  framework: string | null;
  /** Name to display, such as `Next.js`. */
  name: string | null;
  runtime: Runtime | null;
  port: number | null;
  healthCheckPath: string;
  /** Reasons of the decisions, one sentence each. */
  evidence: string[];
  /** Possible surprises for the owner, one sentence each. */
  warnings: string[];
  /** Build context, as a path in the repository; `.` means the whole repository. */
  context: string;
  /** Path of the repository's own Dockerfile; null if there is none. */
  dockerfile: string | null;
  plan: BuildSpec["plan"] | null;
}

export interface AnalyzeOptions {
  /** Directory of the app in the repository; a leading `/` means the repository's root. */
  rootDirectory?: string;
  /** Id of the framework to use instead of the detected framework. Ignored if its files are missing. */
  framework?: string;
  /** Settings of the project's owner, which affect detection. A setting without effect causes a warning. */
  overrides?: Overrides;
}

/** Limit of workspace members to read. A repository with more members is an archive, not a monorepo of apps. */
const maxMembers = 12;

/**
 * Analyzes a repository. Returns undefined for an empty repository. Throws RangeError for a root directory with
 * characters that a Dockerfile cannot contain.
 */
export async function analyze(tree: Tree, options: AnalyzeOptions = {}): Promise<Analysis | undefined> {
  const directory = plainPath(options.rootDirectory ?? ".");
  if (directory === undefined)
    throw new RangeError(
      "root_directory must be inside the repository, and consist of letters, digits and . _ - @ + /",
    );
  const view = new Inspection(tree);
  if ((await view.list(".")).every((entry) => entry.name === ".git")) return undefined;
  if ((await view.list(directory)).length === 0) view.warn(`the repository has no directory ${directory}`);

  const { overrides = {} } = options;
  const own = await view.first(["Dockerfile", "Containerfile"].map((name) => posix.join(directory, name)));
  if (own !== undefined && options.framework === undefined) {
    warnOfNoEffect(
      view,
      overrides,
      ["installCommand", "buildCommand", "startCommand", "outputDirectory"],
      own,
    );
    return ofDockerfile(view, directory, own);
  }

  const settings: DetectionSettings = { framework: options.framework, ...overrides };
  const candidates = await candidatesIn(view, directory, settings);
  const named = candidates.find((each) => each.framework === options.framework);
  if (options.framework !== undefined && named === undefined)
    view.warn(`the repository has no files of ${options.framework}: the detected framework is used`);
  const web = await procfile(view, directory);
  const hasCommand = [web, overrides.startCommand, overrides.outputDirectory].some(
    (each) => each !== undefined,
  );
  const taken =
    named ?? candidates[0] ?? (hasCommand ? await programIn(view, directory, settings) : undefined);
  const foreign = await foreignFiles(view, directory);
  if (taken?.rank === "files" && (await view.has(posix.join(directory, jekyllFile.file))))
    foreign.push(jekyllFile);
  await warnOfConfigurationNotFollowed(view, directory);
  if (taken === undefined) return explainFailure(view, directory, foreign);
  if (named === undefined && isPartOf(taken, foreign, overrides.startCommand ?? web))
    return explainFailure(view, directory, foreign, taken);
  if (taken.missing !== undefined && !hasCommand) {
    view.warn(taken.missing);
    return { ...unbuildable(view, directory), framework: taken.framework, name: taken.name };
  }
  for (const { file, name } of foreign)
    view.warn(`${file}: ${name} is not built here: only ${taken.name} is deployed`);
  for (const other of candidates)
    if (other !== taken && other.rank !== "files")
      view.warn(`${other.name} was detected too: ${taken.name} is built`);
  if (taken.rank === "node-program") await namePossibleRoots(view, directory);
  const settled = asConfigured(view, await taken.resolveBuild(web), overrides);
  if (settled.plan.build === undefined)
    warnOfNoEffect(
      view,
      overrides,
      ["installCommand", "buildCommand"],
      `${taken.name}, which is served unchanged`,
    );
  if (overrides.startCommand !== undefined)
    warnOfNoEffect(view, overrides, ["outputDirectory"], "start_command, which serves the files itself");
  return {
    framework: taken.framework,
    name: taken.name,
    ...settled,
    healthCheckPath: "/",
    evidence: view.evidence,
    warnings: view.warnings,
    context: settled.plan.context,
    dockerfile: null,
  };
}

/**
 * Applies the owner's settings. With an output directory, any framework is deployed as a site, unless a start command
 * serves it.
 */
function asConfigured(
  view: Inspection,
  settled: BuildSpec,
  { outputDirectory, startCommand }: Overrides,
): BuildSpec {
  if (outputDirectory === undefined || startCommand !== undefined) return settled;
  view.because(`output_directory is set: ${outputDirectory} is served as a site`);
  return { ...settled, runtime: "static", startCommand: null, outputDirectory };
}

const settingNames = {
  installCommand: "install_command",
  buildCommand: "build_command",
  startCommand: "start_command",
  outputDirectory: "output_directory",
} as const;

function warnOfNoEffect(
  view: Inspection,
  overrides: Overrides,
  keys: readonly (keyof typeof settingNames)[],
  because: string,
): void {
  for (const key of keys)
    if (overrides[key] !== undefined) view.warn(`${settingNames[key]} has no effect beside ${because}`);
}

async function candidatesIn(
  view: Inspection,
  directory: string,
  settings: DetectionSettings = {},
): Promise<Candidate[]> {
  const detectors = [findNode, findPython, findGo, findFiles];
  const found = await Promise.all(detectors.map((detect) => detect(view, directory, settings)));
  return found
    .filter((each) => each !== undefined)
    .toSorted((a, b) => ranks.indexOf(a.rank) - ranks.indexOf(b.rank));
}

/** Returns a program of a language whose manifest exists, if a Procfile or the owner sets the start command. */
async function programIn(
  view: Inspection,
  directory: string,
  settings: DetectionSettings,
): Promise<Candidate | undefined> {
  return (
    (await findNode(view, directory, { ...settings, framework: "node" })) ??
    (await findPython(view, directory, { ...settings, framework: "python" }))
  );
}

const nothing = {
  runtimeVersion: null,
  packageManager: null,
  installCommand: null,
  buildCommand: null,
  startCommand: null,
  outputDirectory: null,
  plan: null,
  healthCheckPath: "/",
};

async function ofDockerfile(view: Inspection, directory: string, file: string): Promise<Analysis> {
  const dockerfile = (await view.text(file)) ?? "";
  view.because(`${file} is the repository's own recipe: no detection runs`);
  const port = Number([...dockerfile.matchAll(/^[ \t]*EXPOSE[ \t]+(\d{1,5})/gim)].at(-1)?.[1] ?? Number.NaN);
  const isPort = port > 0 && port < 65_536;
  if (isPort) view.because(`${file} exposes port ${port}`);
  else view.warn(`${file} exposes no port: 8080 is used, and set as PORT`);
  const health =
    /^[ \t]*HEALTHCHECK\b[^]{0,300}?https?:\/\/(?:localhost|127\.0\.0\.1)(?::\d+)?(\/[\w./-]*)/im.exec(
      dockerfile,
    );
  if (health?.[1]) view.because(`${file} checks ${health[1]}`);
  return {
    ...nothing,
    framework: "dockerfile",
    name: "Dockerfile",
    runtime: "dockerfile",
    port: isPort ? port : 8080,
    healthCheckPath: health?.[1] ?? "/",
    evidence: view.evidence,
    warnings: view.warnings,
    context: directory,
    dockerfile,
  };
}

/**
 * Returns an analysis without a framework, and adds warnings with the cause. The argument `part` is a detected
 * framework that belongs to a program in another language.
 */
async function explainFailure(
  view: Inspection,
  directory: string,
  foreign: readonly ForeignFile[],
  part?: Candidate,
): Promise<Analysis> {
  for (const { file, name } of foreign) view.warn(`${file}: ${name} needs a Dockerfile in the repository`);
  if (part === undefined) {
    await warnOfHalfAProgram(view, directory);
    await namePossibleRoots(view, directory);
    view.warn("no framework was detected: add a Dockerfile, or set root_directory");
  } else
    view.warn(
      `deploying only ${part.name} would leave out the rest: add a Dockerfile, or set framework to ${part.framework}`,
    );
  return unbuildable(view, directory);
}

function unbuildable(view: Inspection, directory: string): Analysis {
  return {
    ...nothing,
    framework: null,
    name: null,
    runtime: null,
    port: null,
    evidence: view.evidence,
    warnings: view.warnings,
    context: directory,
    dockerfile: null,
  };
}

/** Warns of the missing setting if the language was detected and the program was not. */
async function warnOfHalfAProgram(view: Inspection, directory: string): Promise<void> {
  const at = (name: string): string => posix.join(directory, name);
  if (await view.has(at("package.json"))) {
    const scripts = strings((await view.json(at("package.json")))["scripts"]);
    const start = scripts.get("start");
    if (start !== undefined)
      view.warn(`package.json's script start runs a development server (${start}): it is not used`);
    view.warn(
      scripts.has("build")
        ? "package.json has a script build: set output_directory to the directory that it writes, or start_command"
        : "package.json names no program: set start_command, or add a script start",
    );
  }
  const isGo = (await view.list(directory)).some(({ name }) => name.endsWith(".go"));
  if (isGo && !(await view.has(at("go.mod"))))
    view.warn(
      "Go is built in the directory of its go.mod: set root_directory to the module, and build_command",
    );
}

/** Warns with the list of a monorepo's apps if no root directory is set. */
async function namePossibleRoots(view: Inspection, directory: string): Promise<void> {
  const below = async (parent: string): Promise<string[]> =>
    (await view.list(parent))
      .filter(
        (entry) =>
          entry.kind === "directory" && /^\w[\w.-]*$/.test(entry.name) && entry.name !== "node_modules",
      )
      .map((entry) => posix.join(parent, entry.name));
  const parents = ["apps", "services", "packages"].map((name) => posix.join(directory, name));
  const members = [...(await Promise.all(parents.map(below))).flat(), ...(await below(directory))];
  const named: string[] = [];
  for (const member of members.slice(0, maxMembers)) {
    const found = (await candidatesIn(view, member)).find((each) => each.rank !== "files");
    if (found) named.push(`${member} (${found.name})`);
  }
  if (named.length > 0) view.warn(`root_directory can be ${named.join(", ")}`);
}

/** Returns the `web` line of the Procfile; undefined if there is none. */
async function procfile(view: Inspection, directory: string): Promise<string | undefined> {
  const lines = ((await view.text(posix.join(directory, "Procfile"))) ?? "").split(/\r?\n/);
  const processes = lines.flatMap((line) => {
    const [, name, command] = /^(\w[\w-]{0,60}):(.+)$/.exec(line.slice(0, maxCommandLength)) ?? [];
    return name === undefined || !command?.trim() ? [] : [{ name, command: command.trim() }];
  });
  for (const { name } of processes)
    if (name === "release")
      view.warn("Procfile: release is not run; put it before the start, or into build_command");
    else if (name !== "web") view.warn(`Procfile: only web is run, not ${name}`);
  const web = processes.find(({ name }) => name === "web")?.command;
  if (web !== undefined) view.because(`Procfile starts web by ${web}`);
  return web;
}
