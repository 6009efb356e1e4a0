/**
 * Installs the missing packages of a list: `apt-get update`, then one `apt-get install` by name. A package comes from
 * the backports suite (`package/suite`) only if the host's own suite has no version that is new enough.
 */
import { existsSync, readFileSync, readdirSync, renameSync, writeFileSync } from "node:fs";
import path from "node:path";
import { hostMirrors } from "@kontor/runtime/rootfs/sources.ts";
import { Failure } from "../lib/failure.ts";
import { findProgram, run } from "../lib/run.ts";
import type { StepView } from "../lib/steps-view.ts";
import type { SystemPackage } from "./packages.ts";
import type { Missing, SetupStep } from "./setup.ts";

export const backportsFile = "/etc/apt/sources.list.d/kontor-backports.sources";

export function aptStep(packages: readonly SystemPackage[]): SetupStep {
  return {
    title: "System packages",
    needsRoot: true,
    async missing() {
      const absent = await Promise.all(packages.map(async (one) => ((await isThere(one)) ? [] : [one])));
      return absent.flat().map(({ name, why }) => ({ what: name, why }));
    },
    install: (missing, view) => install(packages, missing, view),
  };
}

async function install(
  packages: readonly SystemPackage[],
  missing: readonly Missing[],
  view: StepView,
): Promise<void> {
  const wanted = packages.filter(({ name }) => missing.some(({ what }) => what === name));
  const { id, codename, pretty } = distribution();
  if (id !== "debian" || !findProgram("apt-get")) {
    throw new Failure(`set-up installs packages on Debian only; this is ${pretty}`, {
      hint: `Install these by hand and run the command again: ${wanted.map(({ name }) => name).join(" ")}`,
    });
  }
  await apt(["update"], view, 0, 0.1);
  const suite = `${codename}-backports`;
  const tooOld = await namesOfTooOld(wanted);
  if (tooOld.size > 0 && !hasSource(suite)) {
    await addBackports(suite);
    await apt(["update"], view, 0.1, 0.2);
  }
  const names = wanted.map(({ name }) => (tooOld.has(name) ? `${name}/${suite}` : name));
  await apt(["install", "--no-install-recommends", "-y", ...names], view, 0.2, 1);
}

/** Returns the names of packages whose version in the host's own suites is too old. */
async function namesOfTooOld(wanted: readonly SystemPackage[]): Promise<Set<string>> {
  const tooOld = new Set<string>();
  for (const { name, backports } of wanted) {
    if (!backports) continue;
    const env = { ...process.env, LC_ALL: "C.UTF-8" };
    const candidate = parseCandidate((await run(["apt-cache", "policy", name], { env })).output);
    if (candidate === undefined || !(await isAtLeast(candidate, backports.atLeast))) tooOld.add(name);
  }
  return tooOld;
}

/** Returns the version that apt would install (apt-cache(8), `policy`); undefined if apt knows no package. */
export function parseCandidate(output: string): string | undefined {
  const version = /^ *Candidate: *(\S+)/m.exec(output)?.[1];
  return version === "(none)" ? undefined : version;
}

const isAtLeast = async (version: string, atLeast: string): Promise<boolean> =>
  (await run(["dpkg", "--compare-versions", version, "ge", atLeast])).code === 0;

/** Runs an apt-get command. The progress counts from `from` to `to` of the whole step. */
async function apt(args: readonly string[], view: StepView, from: number, to: number): Promise<void> {
  view.update(`apt-get ${args[0]}`, from);
  const options = [
    "-q",
    "-o",
    "DPkg::Lock::Timeout=300",
    "-o",
    "APT::Status-Fd=3",
    "-o",
    "Acquire::Retries=3",
  ];
  const { code, output } = await run(["apt-get", ...options, ...args], {
    env: { ...process.env, DEBIAN_FRONTEND: "noninteractive", LC_ALL: "C.UTF-8" },
    onStatus(line) {
      const progress = parseStatus(line);
      if (progress) view.update(progress.text, from + (to - from) * progress.fraction);
    },
    timeoutMs: 30 * 60_000,
  });
  if (code === 0) return;
  const errors = output.split("\n").filter((line) => /^(E|W|Err)[: ]/.test(line));
  throw new Failure(`apt-get ${args[0]} failed (${code})`, {
    hint: (errors.length > 0 ? errors : output.trim().split("\n").slice(-10)).join("\n"),
  });
}

/**
 * Parses a line of APT::Status-Fd: `dlstatus:n:percent:text` while fetching, `pmstatus:package:percent:text` while
 * installing. Fetching counts as the first half.
 */
export function parseStatus(line: string): { fraction: number; text: string } | undefined {
  const [kind, , percent = "", text = ""] = line.split(":");
  const share = Number.parseFloat(percent) / 100;
  if (!Number.isFinite(share)) return undefined;
  if (kind === "dlstatus") return { fraction: share / 2, text: text.trim() };
  if (kind === "pmstatus") return { fraction: 0.5 + share / 2, text: text.trim() };
  return undefined;
}

async function isThere(one: SystemPackage): Promise<boolean> {
  const found = one.provides.every((thing) =>
    thing.startsWith("/") ? existsSync(thing) : findProgram(thing),
  );
  if (!found || !one.backports) return found;
  const { code, output } = await run(["dpkg-query", "-W", "-f", "${Version}", one.name]);
  // no package: the operator installed the program without apt
  if (code !== 0 || output === "") return true;
  return isAtLeast(output.trim(), one.backports.atLeast);
}

export function distribution(): { id: string; codename: string; version: string; pretty: string } {
  const text = existsSync("/etc/os-release") ? readFileSync("/etc/os-release", "utf8") : "";
  const field = (name: string): string => new RegExp(`^${name}="?([^"\n]*)"?$`, "m").exec(text)?.[1] ?? "";
  const version = field("VERSION_ID");
  return {
    id: field("ID"),
    codename: field("VERSION_CODENAME"),
    version,
    pretty: field("PRETTY_NAME") || "an unknown system",
  };
}

/** Returns whether a source of apt has the suite. */
function hasSource(suite: string): boolean {
  const folder = "/etc/apt/sources.list.d";
  const files = existsSync(folder) ? readdirSync(folder).map((name) => path.join(folder, name)) : [];
  return ["/etc/apt/sources.list", ...files]
    .filter((file) => /\.(list|sources)$/.test(file) && existsSync(file))
    .some((file) => readFileSync(file, "utf8").split(/\s+/).includes(suite));
}

/**
 * Adds the backports suite of the mirror of the host's other packages: a local mirror, a proxy or the public archive.
 */
async function addBackports(suite: string): Promise<void> {
  const text = backportsSource((await hostMirrors()).main, suite);
  writeFileSync(`${backportsFile}.new`, text, { mode: 0o644 });
  renameSync(`${backportsFile}.new`, backportsFile);
}

/** Returns the text of a deb822 file (sources.list(5)) for one suite. */
export function backportsSource(mirror: string, suite: string): string {
  return [
    "# Written by kontor: the same archive as this machine's own, for the version of runsc it needs.",
    "Types: deb",
    `URIs: ${mirror}`,
    `Suites: ${suite}`,
    "Components: main",
    "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg",
    "",
  ].join("\n");
}
