/**
 * Detects a Node.js app from its package.json: framework, package manager, Node version, build and start. The image
 * starts the script's own line instead of `npm start`, so that the app receives the signals instead of npm.
 */
import { posix } from "node:path";
import semver from "semver";
import { maxCommandLength } from "./dockerfile.ts";
import type { Candidate, BuildSpec, DetectionSettings } from "./candidate.ts";
import { type Framework, frameworks, type Shape, systemNeeds } from "./frameworks.ts";
import {
  type Fields,
  fields,
  type Inspection,
  plainPath,
  strings,
  text,
  stripComments,
} from "./inspection.ts";
import { fromRegistry, versionFiles } from "./version-files.ts";
import { findManager, lockfiles, type ManagerFound } from "./package-managers.ts";
import type { BuildStage, ServerStage, SiteStage } from "./plan.ts";

/** Node versions that this host makes an image for. A range selects one of these versions. */
const majors = [20, 22, 24];
const defaultMajor = 22;
/**
 * Highest Node version that is accepted. Newer versions than `majors` come from a registry; the bound keeps a typing
 * error such as 220 from becoming an image name.
 */
const newestMajor = 40;
/** Versions that are no longer maintained, and cause a warning. */
const oldMajors = [20];
const codeNames: Readonly<Record<string, string>> = { iron: "20", jod: "22", krypton: "24", "*": "24" };

const extensions = ["js", "mjs", "cjs", "ts", "mts", "cts"];

/** Matches a script for development, which watches, reloads or serves sources. */
const forDevelopment = new RegExp(
  `(?<![\\w./-])(?:${[
    "dev|develop|preview|nodemon|vite|parcel|hexo|concurrently|live-server|lite-server|browser-sync",
    "react-scripts start|nest start|docusaurus start|docusaurus-start|ng serve|vue-cli-service serve",
    "eleventy --serve|webpack serve|webpack-dev-server|ember s(?:erve|erver)?|brunch watch|polymer serve",
    "sanity start|expo start|nx serve|nx run [\\w-]+:serve|start-storybook|gulp(?: \\w+)?|grunt serve",
  ].join("|")})(?![\\w./-])|--watch\\b|\\bNODE_ENV=development\\b`,
);

/** Matches a line that runs a program of the repository, not a tool. */
const runsOwnProgram =
  /^(?:\w+=\S+\s+)*(?:cross-env\s+(?:\w+=\S+\s+)*)?(?:node|tsx|ts-node|bun|deno|pm2-runtime)\b/;

/** Matches a line that only runs another script. */
const runsScript = /^(?:npm|yarn|pnpm|bun)(?: run(?:-script)?)? ([\w:.-]+)$/;

/** Scripts of package.json that run during the install. Such scripts may read any file of the repository. */
const installScripts = ["preinstall", "install", "postinstall", "prepare"];

/** Stands for a program without a known framework. */
const program: Framework = { id: "node", name: "Node.js", rank: "server", packages: [], port: 3000 };

/** Stands for a site whose builder is not in the table. The owner must set the output directory. */
const builtSite: Framework = { id: "static", name: "Static site", rank: "site", packages: [], port: 8080 };

/** Directory in which packages are installed, and the app's directory below it. */
interface Place {
  root: string;
  directory: string;
}

interface NodeApp {
  view: Inspection;
  directory: string;
  wanted: DetectionSettings;
  manifest: Fields;
  scripts: Map<string, string>;
  production: Map<string, string>;
  development: Map<string, string>;
}

export async function findNode(
  view: Inspection,
  directory: string,
  wanted: DetectionSettings = {},
): Promise<Candidate | undefined> {
  if (!(await view.has(posix.join(directory, "package.json")))) return undefined;
  const manifest = await view.json(posix.join(directory, "package.json"));
  const app: NodeApp = {
    view,
    directory,
    wanted,
    manifest,
    scripts: new Map([...strings(manifest["scripts"])].filter(([, line]) => line.length <= maxCommandLength)),
    production: strings(manifest["dependencies"]),
    development: strings(manifest["devDependencies"]),
  };
  const { framework: id, outputDirectory } = wanted;
  const named = [...frameworks, program].find((framework) => framework.id === id);
  if (named) return toCandidate(app, named, named === program ? "node-program" : named.rank);
  const isBuilt = app.scripts.has("build") || wanted.buildCommand !== undefined;
  if (id === builtSite.id && outputDirectory !== undefined && isBuilt)
    return toCandidate(app, builtSite, "site");

  const start = startScript(app);
  const ownStart = start !== undefined && isOwnProgram(app, start.line);
  const [whole, server, site] = await Promise.all(
    (["app", "server", "site"] as const).map((rank) => firstOf(app, rank)),
  );
  if (whole) return toCandidate(app, whole, "app");
  if (server && (ownStart || !site) && outputDirectory === undefined)
    return toCandidate(app, server, "server");
  if (site && (!ownStart || outputDirectory !== undefined)) return toCandidate(app, site, "site", server);
  if (outputDirectory !== undefined && isBuilt) return toCandidate(app, builtSite, "site", server);
  if (server) return toCandidate(app, server, "server");
  if (start === undefined && (await entryOf(app)) === undefined) return undefined;
  return toCandidate(app, program, "node-program");
}

/** Makes a candidate. `server` is a server library of the repository that is not part of the deployed site. */
function toCandidate(
  app: NodeApp,
  framework: Framework,
  rank: Candidate["rank"],
  server?: Framework,
): Candidate {
  return {
    framework: framework.id,
    name: framework.name,
    rank,
    resolveBuild: (start) => {
      if (server && start === undefined)
        app.view.warn(
          `${server.name} is a dependency, and no script start runs a server: only the site of ${framework.name} is deployed; if there is a server, set start_command`,
        );
      return resolveBuild(app, framework, start);
    },
  };
}

async function firstOf(app: NodeApp, rank: Framework["rank"]): Promise<Framework | undefined> {
  for (const framework of frameworks) {
    if (framework.rank !== rank) continue;
    if (dependencyOf(app, framework.packages)) return framework;
    if (framework.configSays?.test((await configOf(app, framework)).text)) return framework;
  }
  return undefined;
}

async function resolveBuild(
  app: NodeApp,
  framework: Framework,
  given: string | undefined,
): Promise<BuildSpec> {
  const { view, directory } = app;
  const dependency = dependencyOf(app, framework.packages);
  const config = await configOf(app, framework);
  if (dependency) view.because(`package.json depends on ${dependency.name} ${dependency.version}`);
  else if (framework.packages.length > 0) view.because(`${config.file} names ${framework.name}`);
  else if (framework === builtSite) view.because("package.json builds a site by its script build");
  else view.because("package.json names no known framework: it is run as a Node.js program");

  const place = await placeOf(view, directory);
  const isWorkspace = place.directory !== ".";
  const rootManifest = await view.json(posix.join(place.root, "package.json"));
  const found = await findManager(view, place.root, rootManifest, isForBun(app, ""));
  const { manager } = found;
  const { major, isSubstitute } = await majorOf(app);
  const own = await angular(app, framework, await shapeOf(app, framework, isWorkspace));
  // A start line of the repository serves the build by itself.
  const { output: _output, ships: _ships, ...rest } = own;
  const shape: Shape = given === undefined ? own : { ...rest, start: given };

  const build = app.wanted.buildCommand ?? (await buildLine(app, framework, place, found));
  const start =
    shape.output === undefined ? (given ?? (await startOf(app, framework, shape, manager.name))) : null;
  const tool = start && developmentTool(app, start);
  if (tool) view.warn(`the start runs ${tool}, a development dependency: all of them are kept in the image`);

  const image = `node:${major}-slim`;
  const needs = systemNeeds.filter((need) => app.production.has(need.package));
  for (const need of needs) view.because(`${need.package} needs ${need.run.join(", ")} of Debian`);
  const bundled = (shape.ships ?? []).length > 0 && !shape.ships?.some(([from]) => from === "node_modules");
  const hooks = installScripts.filter((name) => app.scripts.has(name));
  const onlyProduction = build === null && hooks.length === 0 && !tool && found.locked && !isWorkspace;
  const install =
    (onlyProduction ? manager.production : null) ?? manager.install[found.locked ? "locked" : "unlocked"];
  const keepsAll = start === null || tool || bundled || isWorkspace || install === manager.production;

  const bins = [...new Set([posix.join("/app", place.directory), "/app"])].map(
    (at) => `${at}/node_modules/.bin`,
  );
  const path = { PATH: `${bins.join(":")}:$PATH` };
  // Makes Yarn write node_modules as directories, which every start command supports.
  const linker = found.package?.startsWith("@yarnpkg/") ? { YARN_NODE_LINKER: "node-modules" } : {};
  // Docker's image already has a yarn, which npm overwrites only with `--force`.
  const force = manager.name === "yarn" ? "--force " : "";
  const setUp = `npm install --global ${force}${found.package}`;
  const stage: BuildStage = {
    image,
    packages: needs.flatMap((need) => need.build),
    env: { ...path, ...linker, ...(isSubstitute ? anyEngine : {}) },
    setUp: [],
    manifests: isWorkspace || hooks.length > 0 ? null : await manifestsOf(app),
    caches: [manager.cache],
    install,
    add: null,
    buildEnv: { NODE_ENV: "production", ...shape.buildEnv },
    buildCaches: shape.buildCaches ?? [],
    build,
    prune: keepsAll || !found.locked ? null : manager.prune,
  };
  const port = (await portOf(app, start)) ?? (start === null ? 8080 : framework.port);
  const site: SiteStage = {
    kind: "site",
    directory: shape.output ?? ".",
    fallback: shape.fallback ?? null,
    hashed: shape.hashed ?? null,
  };
  const server: ServerStage = {
    kind: "server",
    image,
    packages: needs.flatMap((need) => need.run),
    env: { ...path, ...linker, NODE_ENV: "production", HOST: "0.0.0.0", ...shape.env },
    ships: await present(app, shape.ships ?? []),
    start,
  };
  return {
    runtime: shape.output === undefined ? "node" : "static",
    runtimeVersion: String(major),
    packageManager: manager.name,
    installCommand: install,
    buildCommand: build,
    startCommand: start,
    outputDirectory: shape.output ?? null,
    port,
    plan: {
      context: place.root,
      directory: place.directory,
      manager: found.package ? { name: manager.name, setUp } : null,
      build: stage,
      run: shape.output === undefined ? server : site,
    },
  };
}

/** Variables without which package managers refuse a Node.js version outside of `engines`. */
const anyEngine = { npm_config_engine_strict: "false", YARN_IGNORE_ENGINES: "1" };

function dependencyOf(app: NodeApp, names: readonly string[]): { name: string; version: string } | undefined {
  const name = names.find((each) => app.production.has(each) || app.development.has(each));
  return name === undefined
    ? undefined
    : { name, version: app.production.get(name) ?? app.development.get(name) ?? "" };
}

/** Returns the text of all configuration files of the framework, and the name of the first. */
async function configOf(app: NodeApp, framework: Framework): Promise<{ file: string; text: string }> {
  const names = (framework.config ?? []).flatMap((name) =>
    extensions.map((extension) => `${name}.${extension}`),
  );
  if (framework.config?.includes(".eleventy")) names.push(".eleventy.js");
  const files: string[] = [];
  for (const name of names) if (await app.view.has(posix.join(app.directory, name))) files.push(name);
  const texts = await Promise.all(files.map((name) => app.view.text(posix.join(app.directory, name))));
  return {
    file: files[0] ?? "package.json",
    text: texts.map((each) => stripComments(each ?? "")).join("\n"),
  };
}

/** Returns the framework's shape, adapted to this repository's configuration. */
async function shapeOf(app: NodeApp, framework: Framework, isWorkspace: boolean): Promise<Shape> {
  const { view, directory } = app;
  const config = await configOf(app, framework);
  const version = dependencyOf(app, framework.packages)?.version ?? "";
  let shape: Shape = framework;
  for (const variant of framework.variants ?? []) {
    const { when } = variant;
    const holds =
      when.config?.test(config.text) ||
      when.build?.test(app.scripts.get("build") ?? "") ||
      when.version?.test(version) ||
      (when.file !== undefined && (await view.has(posix.join(directory, when.file))));
    if (!holds) continue;
    // In a workspace the dependencies are in another directory, where this variant's files would be as well.
    if (isWorkspace && variant.onlyStart) break;
    view.because(`${when.config?.test(config.text) ? config.file : framework.name} ${variant.because}`);
    if (variant.warn) view.warn(`${config.file}: ${variant.warn}`);
    const { start, output, ...rest } = framework;
    const base = variant.output ? rest : variant.start ? { ...rest, start } : { ...rest, start, output };
    shape = omitUndefined({ ...base, ...variant });
    break;
  }
  if (shape.output !== undefined && shape.outputIn) {
    const set = shape.outputIn.exec(config.text)?.[1];
    const output = set === undefined ? undefined : plainPath(set);
    if (set !== undefined && output === undefined)
      view.warn(`${config.file} writes to ${set}, which is outside of the app: set output_directory`);
    if (output !== undefined) {
      view.because(`${config.file} writes to ${output}`);
      shape = { ...shape, output };
    }
  }
  const fallback = shape.fallbackIn?.exec(config.text)?.[1];
  if (fallback !== undefined) shape = { ...shape, fallback };
  const needsModules = shape.ships?.some(([from]) => from === "node_modules");
  return isWorkspace && needsModules ? { ...shape, ships: [] } : shape;
}

function omitUndefined(shape: { [key in keyof Shape]: Shape[key] | undefined }): Shape {
  return Object.fromEntries(Object.entries(shape).filter(([, value]) => value !== undefined)) as Shape;
}

/** Sets Angular's output directory. angular.json names it, and its layout differs by builder. */
async function angular(app: NodeApp, framework: Framework, shape: Shape): Promise<Shape> {
  if (framework.id !== "angular") return shape;
  const file = await app.view.json(posix.join(app.directory, "angular.json"));
  const [first] = Object.entries(fields(file["projects"]));
  if (first === undefined) return shape;
  const [name, project] = first;
  const { builder, options } = fields(fields(fields(project)["architect"])["build"]);
  const outputPath = fields(options)["outputPath"];
  const base = plainPath(text(outputPath) ?? text(fields(outputPath)["base"]) ?? `dist/${name}`);
  if (base === undefined) {
    app.view.warn("angular.json has no usable output path: set output_directory");
    return shape;
  }
  app.view.because(`angular.json writes to ${base}`);
  if (fields(options)["ssr"]) {
    app.view.because("angular.json turns server rendering on");
    const { output: _, ...rest } = shape;
    return { ...rest, start: `node ${base}/server/server.mjs`, ships: [["dist", "dist"]] };
  }
  // The builders `application` and `browser-esbuild` both use esbuild; only the first nests its output.
  return { ...shape, output: text(builder)?.endsWith(":application") ? `${base}/browser` : base };
}

/**
 * Returns the directory of the install, and the app's directory below it. The app is a member of a workspace if the
 * nearest lockfile is above it.
 */
async function placeOf(view: Inspection, directory: string): Promise<Place> {
  for (let root = directory; ; root = posix.dirname(root)) {
    const lockfile = await view.first(lockfiles.map((file) => posix.join(root, file)));
    const members =
      root !== directory &&
      ((await view.has(posix.join(root, "pnpm-workspace.yaml"))) ||
        (await view.json(posix.join(root, "package.json")))["workspaces"] !== undefined);
    if (lockfile !== undefined || members) {
      if (root !== directory)
        view.because(
          `${directory} belongs to the workspace in ${root === "." ? "the root" : root}: it is installed whole`,
        );
      return { root, directory: posix.relative(root, directory) || "." };
    }
    if (root === ".") return { root: directory, directory: "." };
  }
}

async function majorOf(app: NodeApp): Promise<{ major: number; isSubstitute: boolean }> {
  const { view, directory } = app;
  const requests: [where: string, range: string | undefined][] = [
    ...(await versionFiles(view, directory, [".nvmrc", ".node-version"], ["nodejs", "node"])),
    ["package.json (volta)", text(fields(app.manifest["volta"])["node"])],
    ["package.json (engines)", text(fields(app.manifest["engines"])["node"])],
  ];
  const [where, requested] = requests.find(([, range]) => range) ?? [];
  if (where === undefined || requested === undefined) {
    view.because(`no file names a version of Node.js: ${defaultMajor} is used`);
    return { major: defaultMajor, isSubstitute: false };
  }
  const range = requested
    .slice(0, 100)
    .replace(/^lts(?:\/(.*))?$/, (_, name = "*") => codeNames[name] ?? "*");
  // `node`, `latest` and `stable` are not ranges; each means the newest version.
  const valid = /^(?:node|latest|stable)$/.test(range) ? "*" : semver.validRange(range);
  const fit = majors.filter((major) => valid && semver.intersects(valid, `${major}.x`));
  const taken = fit.includes(defaultMajor) ? defaultMajor : fit.at(-1);
  const least = valid ? (semver.minVersion(valid)?.major ?? 0) : 0;
  if (taken === undefined && least > majors.at(-1)! && least <= newestMajor) {
    view.because(`${where} requests Node.js ${requested}: ${least} is used`);
    view.warn(fromRegistry("Node.js", `node:${least}-slim`, majors));
    return { major: least, isSubstitute: false };
  }
  if (taken === undefined)
    view.warn(`${where} requests Node.js ${requested}, which is unavailable: ${defaultMajor} is used`);
  else view.because(`${where} requests Node.js ${requested}: ${taken} is used`);
  if (taken !== undefined && oldMajors.includes(taken))
    view.warn(`Node.js ${taken} no longer gets security fixes`);
  return { major: taken ?? defaultMajor, isSubstitute: taken === undefined };
}

async function buildLine(
  app: NodeApp,
  framework: Framework,
  place: Place,
  found: ManagerFound,
): Promise<string | null> {
  const { view } = app;
  const script = app.scripts.get("build");
  if (script === undefined) {
    if (framework.build) view.because(`package.json has no script build: ${framework.build} is run`);
    return framework.build ?? null;
  }
  view.because(`package.json's script build runs ${script}`);
  if (place.directory === ".") return `${found.manager.name} run build`;
  if (await view.has(posix.join(place.root, "turbo.json"))) {
    view.because("turbo.json: turbo builds the app's dependencies in the workspace first");
    return "turbo run build";
  }
  // `...` adds the app's dependencies, in build order. A path filter is relative to pnpm's working directory. If it
  // matches no package, pnpm succeeds without an error.
  if (found.manager.name === "pnpm") {
    const root = posix.relative(place.directory, ".");
    const strict = /^pnpm@[1-7]\b/.test(found.package ?? "") ? "" : " --fail-if-no-match";
    return `cd ${root} && pnpm --filter "./${place.directory}..."${strict} run build`;
  }
  view.warn("packages of the workspace that the app needs are not built: build them in build_command");
  return `${found.manager.name} run build`;
}

/**
 * Returns the script that starts the app in production. A script that only runs another one is resolved to that one.
 */
function startScript(app: NodeApp): { name: string; line: string } | undefined {
  return ["start:prod", "start:production", "start"]
    .filter((name) => !forDevelopment.test(app.scripts.get(name) ?? ""))
    .map((name) => resolveScript(app, name))
    .find((script) => script !== undefined && !forDevelopment.test(script.line));
}

function resolveScript(app: NodeApp, name: string, depth = 0): { name: string; line: string } | undefined {
  const line = app.scripts.get(name)?.trim();
  if (!line) return undefined;
  const next = runsScript.exec(line)?.[1];
  if (next === undefined || depth > 3 || app.scripts.has(`pre${name}`)) return { name, line };
  return resolveScript(app, next, depth + 1) ?? { name, line };
}

/** True if the last command of the line runs a program of the repository, directly or through another script. */
function isOwnProgram(app: NodeApp, line: string): boolean {
  const last = line.split("&&").at(-1)?.trim() ?? "";
  const script = runsScript.exec(last)?.[1];
  const target = script === undefined ? undefined : resolveScript(app, script)?.line;
  return runsOwnProgram.test(target ?? last);
}

/**
 * True if the project is written for Bun. Unlike Node, Bun runs TypeScript and servers that a module exports as
 * default.
 */
function isForBun(app: NodeApp, manager: string): boolean {
  const scripts = [...app.scripts.values()];
  return (
    manager === "bun" ||
    app.development.has("@types/bun") ||
    app.development.has("bun-types") ||
    scripts.some((line) => /(?<![\w./-])bunx?(?![\w./-])/.test(line))
  );
}

async function startOf(app: NodeApp, framework: Framework, shape: Shape, manager: string): Promise<string> {
  const { view } = app;
  const script = startScript(app);
  if (script && !shape.onlyStart) {
    const { name, line } = script;
    view.because(`package.json's script ${name} runs ${line}`);
    if (!app.scripts.has(`pre${name}`) && !line.includes("npm_")) return line;
    view.because(`npm runs the script ${name}, because it has related scripts`);
    return `npm run ${name}`;
  }
  if (shape.start !== undefined) {
    view.because(`${framework.name} is started by ${shape.start}`);
    return shape.start;
  }
  const entry = await entryOf(app);
  if (entry === undefined) view.warn("no start was detected: set start_command, or a script start");
  else view.because(`package.json has no script start: ${entry} is run`);
  if (isForBun(app, manager)) {
    view.because("the project is written for Bun: Bun runs it");
    return `bun run ${entry ?? "index.ts"}`;
  }
  return `node ${entry ?? "index.js"}`;
}

/** Returns the program's file: `main` of package.json, or the first of the usual names. */
async function entryOf(app: NodeApp): Promise<string | undefined> {
  const main = plainPath(text(app.manifest["main"]) ?? "");
  const made = app.scripts.has("build");
  if (main && main !== "." && (made || (await app.view.has(posix.join(app.directory, main))))) return main;
  const found = await app.view.first(entries.map((name) => posix.join(app.directory, name)));
  return found && posix.relative(app.directory, found);
}

const entries = ["", "src/"].flatMap((directory) =>
  ["server", "index", "app", "main"].flatMap((name) =>
    ["js", "mjs", "cjs", "ts", "mts"].map((extension) => `${directory}${name}.${extension}`),
  ),
);

/** Returns the development dependency whose program the start command runs; undefined if there is none. */
function developmentTool(app: NodeApp, start: string): string | undefined {
  const words = start.split(/[\s=/]+/).map((word) => bins[word] ?? word);
  return words.find((word) => app.development.has(word) && !app.production.has(word));
}

/** Names of programs that differ from the name of their package. */
const bins: Readonly<Record<string, string | undefined>> = {
  ng: "@angular/cli",
  nest: "@nestjs/cli",
  "remix-serve": "@remix-run/serve",
  "react-router-serve": "@react-router/serve",
};

async function manifestsOf(app: NodeApp): Promise<string[] | null> {
  const { view, directory } = app;
  const local = [...app.production, ...app.development].find(([, version]) =>
    /^(?:file|link|portal):/.test(version),
  );
  if (local || app.manifest["workspaces"] !== undefined) return null;
  const files = [
    "package.json",
    ...lockfiles,
    ".npmrc",
    ".yarnrc",
    ".yarnrc.yml",
    ".pnpmfile.cjs",
    "bunfig.toml",
  ];
  const present: string[] = [];
  for (const name of [...files, "pnpm-workspace.yaml"])
    if (await view.has(posix.join(directory, name))) present.push(name);
  // An install also reads a yarn of the repository, patches of dependencies, and Prisma's schema.
  for (const name of [".yarn", "patches", "prisma"])
    if (await view.has(posix.join(directory, name), "directory")) present.push(`${name}/`);
  return present;
}

/** Returns the directories that the repository has. */
async function present(
  app: NodeApp,
  ships: NonNullable<Shape["ships"]>,
): Promise<NonNullable<Shape["ships"]>> {
  const hasPublic = await app.view.has(posix.join(app.directory, "public"), "directory");
  return ships.filter(([from]) => from !== "public" || hasPublic);
}

/** Returns the port named in the start command or in a program. PORT is set to the same number. */
async function portOf(app: NodeApp, start: string | null): Promise<number | undefined> {
  if (start === null) return undefined;
  const inStart = /(?:(?:^|\s)-p[ =]?|--port[ =]|\bPORT=)(\d{2,5})\b/.exec(start)?.[1];
  if (inStart !== undefined) {
    app.view.because(`the start names port ${inStart}`);
    return Number(inStart);
  }
  const named = start.split(/\s+/).map((word) => plainPath(word) ?? "");
  for (const file of [...named, ...entries].filter((name) =>
    extensions.includes(name.split(".").at(-1) ?? ""),
  )) {
    const source = await app.view.text(posix.join(app.directory, file));
    const port = source === undefined ? undefined : portIn(source);
    if (port === undefined) continue;
    app.view.because(`${file} listens on port ${port}`);
    return port;
  }
  return undefined;
}

export function portIn(source: string): number | undefined {
  const match =
    /\blisten\(\s*(?:\{\s*port\s*:\s*)?(\d{2,5})\b/.exec(source) ??
    /\bPORT\b["'\])]*\s*(?:\|\||\?\?|,)\s*["']?(\d{2,5})\b/.exec(source) ??
    /\bport\s*[:=]\s*(\d{2,5})\b/i.exec(source);
  const port = Number(match?.[1]);
  return port > 0 && port < 65_536 ? port : undefined;
}
