/**
 * Parses a Dockerfile and rewrites it for the builder: one line for each instruction, without comments and
 * continuations, and with literal names of bases. A Dockerfile is untrusted, and builders accept more than
 * instructions: paths of the host as image names, and as mounts. Everything that this parser does not
 * understand is refused. So no text can have a second meaning for the builder. Pure.
 */
import { posix } from "node:path";
import { RuntimeError } from "../../driver.ts";
import { StageFiles } from "./stage-files.ts";
import type { Step } from "../uses.ts";

export interface Dockerfile {
  /** Text of the rewritten Dockerfile for the builder. */
  text: string;
  /** Base images that are not stages of this Dockerfile, each once. */
  bases: string[];
}

export interface Environment {
  /** A secret file, from which a shell reads the variables. */
  file: string;
  /** Files that only a command can read: path → id of a secret. */
  secrets: Readonly<Record<string, string>>;
  /**
   * Returns a stamp that changes with the values of the variables that the command may use. So the cache never returns
   * a layer made with other values.
   */
  stampOf: (step: Step) => string;
}

export interface RewriteOptions {
  /** Gives every command the variables of the build, from a file that is in no layer. */
  environment?: Environment;
  /** True for a path of the context without a symlink in it. Other paths are not allowed as a mount's source. */
  isPlainPath?: (path: string) => boolean;
}

/** Longest line in characters: the builder's scanner accepts no line above 64 KiB. */
const lineMaxChars = 60_000;
const textMaxChars = 1_000_000;
/** Longest path in characters, as in Linux (PATH_MAX, limits.h). */
const pathMaxChars = 4096;
/** Largest number of stages, which is more than any usual Dockerfile has. Each stage costs the builder a container. */
const stagesMax = 64;

const instructions = new Set(
  "ADD ARG CMD COPY ENTRYPOINT ENV EXPOSE FROM HEALTHCHECK LABEL MAINTAINER RUN SHELL STOPSIGNAL USER VOLUME WORKDIR".split(
    " ",
  ),
);

/**
 * Matches image names in the form of registries, but not forms that a builder reads as a path or a daemon of the host.
 */
const imageName =
  /^(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::\d{1,5})?\/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*(?::[\w][\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?$/;
const transports =
  /^(?:atomic|containers-storage|dir|docker|docker-archive|docker-daemon|oci|oci-archive|ostree|sif|tarball)(?::|$)/;

/** Throws a RuntimeError `image_failed` that explains the fault to the author. */
export function readDockerfile(source: string, options: RewriteOptions = {}): Dockerfile {
  const args = new Map<string, string>();
  const stages = new Set<string>();
  const bases = new Set<string>();
  const lines: string[] = [];
  const files = new StageFiles();
  let count = 0;
  // Working directory, as far as the text shows it, otherwise "/".
  let at = "/";
  for (const line of logicalLines(source)) {
    const [, word = "", rest = ""] = /^(\S+)\s*(.*)$/.exec(line) ?? [];
    const keyword = word.toUpperCase();
    if (keyword === "ONBUILD") throw refuse("ONBUILD is for images that others build on; remove it");
    if (!instructions.has(keyword)) throw refuse(`${quote(word)} is not an instruction`);
    if (keyword === "FROM") {
      const { image, alias } = readFrom(rest, args);
      // The number of a stage also names it.
      const base = stages.has(image.toLowerCase()) ? image.toLowerCase() : image;
      if (base !== "scratch" && !stages.has(base)) bases.add(checkedName(base));
      at = "/";
      lines.push(`FROM ${base}${alias === undefined ? "" : ` AS ${alias}`}`);
      files.begin(base, alias === undefined ? [String(count)] : [String(count), alias]);
      stages.add(String(count));
      if (alias !== undefined) stages.add(alias);
      count += 1;
      if (count > stagesMax) throw refuse(`it has more than ${stagesMax} stages`);
      continue;
    }
    if (count === 0) {
      if (keyword !== "ARG") throw refuse("it must begin with FROM");
      const [, name = "", value = ""] = /^([A-Za-z_]\w*)(?:=(.*))?$/.exec(rest) ?? [];
      if (name === "") throw refuse(`ARG ${quote(rest)} is not understood`);
      args.set(name, unquote(value));
    }
    if (keyword === "COPY" || keyword === "ADD") {
      const options = flags(rest);
      const from = options.find(([name]) => name === "from")?.[1];
      files.copy(behind(options, rest), from);
      if (from !== undefined && !stages.has(from.toLowerCase())) bases.add(checkedName(from));
    }
    if (keyword === "WORKDIR") {
      at = rest.includes("$") ? "/" : posix.resolve(at, unquote(rest));
      // Each WORKDIR line makes the path longer, and is checked against the whole path.
      if (at.length > pathMaxChars) throw refuse(`a WORKDIR has more than ${pathMaxChars} characters`);
    }
    if (keyword === "VOLUME")
      for (const path of execForm(rest) ?? rest.split(/\s+/)) checkPlace(at, unquote(path));
    if (keyword !== "RUN") {
      lines.push(`${keyword} ${rest}`);
      continue;
    }
    const words = flags(rest);
    const command = behind(words, rest);
    for (const [name, value] of words) {
      if (name !== "mount") throw refuse(`RUN --${name} is not supported`);
      for (const from of checkMount(value, at, options.isPlainPath ?? (() => false)))
        if (!stages.has(from.toLowerCase())) bases.add(checkedName(from));
    }
    // The builder would read any other leading option, which this parser did not check.
    if (command.startsWith("-")) throw refuse("a command must not begin with -");
    const given = words.map(([, , text]) => text).join("");
    const isBound = words.some(([, value]) => !/(?:^|,)type=(?:cache|secret|tmpfs)(?:,|$)/.test(value));
    const step = { command, files: isBound ? ["."] : files.now };
    lines.push(`RUN ${given}${options.environment ? withEnvironment(step, options.environment) : command}`);
  }
  if (count === 0) throw refuse("it has no FROM");
  const long = lines.find((line) => line.length > lineMaxChars);
  if (long !== undefined) throw refuse(`an instruction has more than ${lineMaxChars} characters`);
  return { text: `${lines.join("\n")}\n`, bases: [...bases] };
}

function logicalLines(source: string): string[] {
  if (source.length > textMaxChars) throw refuse(`it has more than ${textMaxChars} characters`);
  if (source.includes("\0")) throw refuse("it contains a NUL byte; remove it");
  const found: string[] = [];
  let open: string | undefined;
  for (const raw of source.replace(/^\uFEFF/, "").split(/\r\n|\n|\r/)) {
    if (/^\s*#/.test(raw)) {
      if (/^\s*#\s*escape\s*=\s*[^\s\\]/i.test(raw))
        throw refuse("an escape character other than \\ is not supported");
      continue;
    }
    if (raw.trim() === "") continue;
    const continues = /\\[ \t]*$/.exec(raw);
    const piece: string = continues ? raw.slice(0, continues.index) : raw;
    open = open === undefined ? piece.trimStart() : open + piece;
    if (continues) continue;
    found.push(open.trim());
    open = undefined;
  }
  if (open !== undefined && open.trim() !== "") found.push(open.trim());
  return found;
}

function readFrom(rest: string, args: ReadonlyMap<string, string>): { image: string; alias?: string } {
  const words = rest.split(/\s+/);
  while (words[0]?.startsWith("--")) {
    const flag = words.shift() ?? "";
    if (!/^--platform=(?:linux\/(?:amd64|x86_64)|\$\{?(?:BUILD|TARGET)PLATFORM\}?)$/.test(flag))
      throw refuse(`FROM ${quote(flag)} is not supported: images are made for this host's processors`);
  }
  const [name = "", as, alias, ...more] = words;
  if (as !== undefined && (as.toUpperCase() !== "AS" || alias === undefined || more.length > 0))
    throw refuse(`FROM ${quote(rest)} is not understood`);
  if (alias !== undefined && !/^[A-Za-z][\w.-]{0,62}$/.test(alias))
    throw refuse(`${quote(alias)} is not a valid name of a stage`);
  const image = expand(unquote(name), args);
  return alias === undefined ? { image } : { image, alias: alias.toLowerCase() };
}

/**
 * Expands `$NAME`, `${NAME}` and `${NAME:-default}` with the arguments before the first FROM. FROM can use no other
 * arguments.
 */
function expand(text: string, args: ReadonlyMap<string, string>): string {
  let chars = 0;
  return text.replaceAll(
    /\$(?:\{([A-Za-z_]\w*)(?::-([^}$]*))?\}|([A-Za-z_]\w*))/g,
    (_, braced: string | undefined, fallback: string | undefined, plain: string | undefined) => {
      const value = args.get(braced ?? plain ?? "") || (fallback ?? "");
      // A long argument that is used often would fill the server's memory.
      chars += value.length;
      if (chars > lineMaxChars) throw refuse(`the name of an image has more than ${lineMaxChars} characters`);
      return value;
    },
  );
}

function checkedName(name: string): string {
  if (!imageName.test(name) || transports.test(name))
    throw refuse(`${quote(name)} is not a valid name of an image`);
  return name;
}

/**
 * Returns `[name, value, text]` of the leading options of an instruction. `text` is unchanged, with its
 * spaces.
 */
function flags(rest: string): [name: string, value: string, text: string][] {
  const found: [string, string, string][] = [];
  let at = 0;
  for (;;) {
    const match = /^--([a-z-]+)(?:=(\S*))?(?:\s+|$)/.exec(rest.slice(at));
    if (!match) return found;
    found.push([match[1] ?? "", match[2] ?? "", match[0]]);
    at += match[0].length;
  }
}

function behind(options: ReturnType<typeof flags>, rest: string): string {
  return rest.slice(options.reduce((length, [, , text]) => length + text.length, 0));
}

const plainValue = /^[\w./@+:-]*$/;
const mountKeys: Readonly<Record<string, readonly string[]>> = {
  // Builders before 1.37.4 followed a cache's `from` and `source` out of the cache (CVE-2024-9675).
  cache: ["target", "dst", "destination", "id", "sharing", "mode", "uid", "gid", "ro", "readonly", "rw"],
  secret: ["id", "target", "dst", "required", "mode", "uid", "gid"],
  bind: ["target", "dst", "destination", "source", "src", "from", "ro", "readonly"],
  tmpfs: ["target", "dst", "destination"],
};

const kernelPlaces = /^\/(?:dev|proc|sys)(?:\/|$)/;

/** Returns the images from which the mount takes its files. */
function checkMount(value: string, at: string, isPlainPath: (path: string) => boolean): string[] {
  const pairs = value.split(",").map((pair) => {
    const [key = "", ...given] = pair.split("=");
    return [key, given.join("=")] as const;
  });
  const of = new Map(pairs);
  const type = of.get("type") ?? "bind";
  const allowed = mountKeys[type];
  if (allowed === undefined) throw refuse(`a mount of type ${quote(type)} is not supported`);
  for (const [key, given] of pairs) {
    if (key !== "type" && !allowed.includes(key))
      throw refuse(`${quote(key)} of a ${type} mount is not supported`);
    if (!plainValue.test(given) || given.split("/").includes(".."))
      throw refuse(`${quote(given)} is not supported in a mount`);
  }
  for (const [key, given] of pairs) if (["target", "dst", "destination"].includes(key)) checkPlace(at, given);
  const id = of.get("id");
  if (type === "cache" && id !== undefined && !/^[\w-][\w.-]*$/.test(id))
    throw refuse("the id of a cache may contain letters, digits, dots and dashes only");
  const from = of.get("from");
  if (type !== "bind") return [];
  const source = of.get("source") ?? of.get("src") ?? ".";
  // Older builders follow a symlink in this path out of the context or the image (CVE-2024-1753).
  if (from !== undefined) {
    if (source !== "." && source !== "/")
      throw refuse("a bind mount from an image must mount all of it; use COPY --from");
    return [from];
  }
  if (!isPlainPath(source)) throw refuse(`${quote(source)} is not in the context, or is behind a symlink`);
  return [];
}

/**
 * Refuses a mount at /dev, /proc or /sys, which breaks the command, or is an attack (CVE-2025-31133). This check only
 * gives an early error, because a symlink of the image can lead a mount there too. The enclosure is safe against both.
 */
function checkPlace(at: string, path: string): void {
  const place = posix.resolve(at, path.replaceAll("\\", ""));
  if (kernelPlaces.test(place))
    throw refuse(
      `a mount or volume cannot be at ${quote(path)}, below /dev, /proc or /sys; choose another path`,
    );
}

/** Makes the command read the build's variables from a file that only this command can read. */
function withEnvironment(step: Step, environment: Environment): string {
  const { mount, read } = wrapping(environment, environment.stampOf(step));
  const argv = execForm(step.command);
  if (argv === undefined) return `${mount}${read}; ${step.command}`;
  return `${mount}${JSON.stringify(["/bin/sh", "-c", `${read}; exec "$@"`, "sh", ...argv])}`;
}

/** Returns the text that makes a command read the build's variables. The text is not part of the owner's Dockerfile. */
export function wrapping({ file, secrets }: Pick<Environment, "file" | "secrets">, stamp: string) {
  const mounts = Object.entries(secrets).map(
    ([target, id]) => `--mount=type=secret,id=${id},target=${target},mode=0444 `,
  );
  return {
    mount: mounts.join(""),
    read: `: ${stamp}; set -a; . ${file}; set +a`,
  };
}

function execForm(command: string): string[] | undefined {
  if (!command.startsWith("[")) return undefined;
  try {
    const argv: unknown = JSON.parse(command);
    const isArgv = Array.isArray(argv) && argv.length > 0 && argv.every((word) => typeof word === "string");
    return isArgv ? (argv as string[]) : undefined;
  } catch {
    return undefined;
  }
}

/** Returns an environment as the text of a file for a POSIX shell. */
export function environmentFile(env: Readonly<Record<string, string>>): string {
  return Object.entries(env)
    .map(([name, value]) => `${name}='${value.replaceAll("'", `'\\''`)}'\n`)
    .join("");
}

function unquote(text: string): string {
  const trimmed = text.trim();
  return /^(["'])(.*)\1$/.exec(trimmed)?.[2] ?? trimmed;
}

function quote(text: string): string {
  return `"${text.slice(0, 80)}"`;
}

function refuse(why: string): RuntimeError {
  return new RuntimeError("image_failed", `The Dockerfile cannot be built here: ${why}.`);
}
