/**
 * Known vulnerabilities of an image, from sources that this host can query. The sources are Debian's security suite for
 * its packages, npm's registry for its lockfile, and trivy or grype if installed. The image's own lists are read as
 * data; no program of the image runs. A source without a response is reported as unavailable, never as a source without
 * findings.
 */
import { createHash } from "node:crypto";
import { mkdir, mkdtemp, rm, stat, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run } from "../exec.ts";
import { hostMirrors, sourcesList } from "../rootfs/sources.ts";
import { npmEnvironment } from "../rootfs/trust.ts";
import { KeyedMutex } from "../keyed-mutex.ts";
import { readFromLayers } from "./files.ts";

export type Severity = "critical" | "high" | "medium" | "low" | "unknown";

export interface Finding {
  /** Id of a CVE, of an advisory, or of the fix that is not installed. */
  id: string;
  package: string;
  installed: string;
  /** Version with the fix, or null if no fix is known. */
  fixedIn: string | null;
  severity: Severity;
  title: string;
  source: string;
}

export interface SourceReport {
  source: string;
  /** Findings of the source, or null if the source does not apply to this image. */
  findings: Finding[] | null;
  /** Reason of a failed query; null after a successful one. */
  unavailable: string | null;
  /** Date of the source's data. */
  dataOf: Date | null;
}

export interface Scan {
  scanner: string;
  sources: SourceReport[];
}

export interface ScannedImage {
  /** Directories of the image's layers, the lowest first. */
  layers: readonly string[];
  /** Working directory of the image's app. */
  cwd: string;
}

const LISTS_FOR_MS = 6 * 60 * 60_000;
const APT_MS = 120_000;
const NPM_MS = 60_000;
const STATUS_MAX_BYTES = 32 * 1024 ** 2;
const LOCK_MAX_BYTES = 32 * 1024 ** 2;
const findingsMax = 2000;

export class Scanner {
  readonly #directory: string;
  readonly #mutex = new KeyedMutex<string>();

  /** Scanner whose package lists are kept in `directory` between scans. */
  constructor(directory: string) {
    this.#directory = directory;
  }

  async scan(image: ScannedImage): Promise<Scan> {
    const work = await mkdtemp(join(tmpdir(), "kontor-scan-"));
    try {
      const sources = await Promise.all([
        report("debian-security", () => this.#debian(image, work)),
        report("npm-audit", () => npmAudit(image, work)),
      ]);
      return { scanner: "kontor", sources };
    } finally {
      await rm(work, { recursive: true, force: true });
    }
  }

  async #debian(image: ScannedImage, work: string): Promise<Partial<SourceReport>> {
    const status = await readFromLayers(image.layers, "var/lib/dpkg/status", STATUS_MAX_BYTES);
    const release =
      (await readFromLayers(image.layers, "etc/os-release", 65_536)) ??
      (await readFromLayers(image.layers, "usr/lib/os-release", 65_536));
    const { id, codename } = parseOsRelease(release?.toString() ?? "");
    if (status === undefined) return { findings: null };
    if (id !== "debian" || codename === null)
      throw new Error(`there is no source for packages of ${id ?? "an unknown system"}`);
    const statusFile = join(work, "status");
    await writeFile(statusFile, status);
    return this.#mutex.run(codename, async () => {
      const lists = await this.#lists(codename);
      const options = aptOptions({ ...lists, status: statusFile });
      const { stdout } = await run(["apt-get", ...options, "--simulate", "dist-upgrade"], {
        timeoutMs: APT_MS,
        env: aptEnvironment,
      });
      return { findings: parseUpgrades(stdout), dataOf: (await stat(lists.stamp)).mtime };
    });
  }

  /** Returns the package lists of the suite and its security fixes, which are downloaded again after six hours. */
  async #lists(codename: string): Promise<{ directory: string; sources: string; stamp: string }> {
    const directory = join(this.#directory, codename);
    const [sources, stamp] = [join(directory, "sources.list"), join(directory, "stamp")];
    const updatedAt = await stat(stamp).then(
      ({ mtimeMs }) => mtimeMs,
      () => 0,
    );
    if (Date.now() - updatedAt < LISTS_FOR_MS) return { directory, sources, stamp };
    for (const name of ["lists/partial", "cache/archives/partial"])
      await mkdir(join(directory, name), { recursive: true, mode: 0o755 });
    const mirrors = await hostMirrors();
    if (mirrors.security === null) throw new Error("this host's apt names no security suite");
    await writeFile(sources, sourcesList(mirrors, codename, ["main"]));
    await writeFile(join(directory, "no-status"), "");
    const options = aptOptions({ directory, sources, status: join(directory, "no-status") });
    await run(["apt-get", ...options, "-o", "APT::Update::Error-Mode=any", "update"], {
      timeoutMs: APT_MS,
      env: aptEnvironment,
    });
    await writeFile(stamp, "");
    const now = new Date();
    await utimes(stamp, now, now);
    return { directory, sources, stamp };
  }
}

const aptEnvironment = { PATH: process.env["PATH"], LC_ALL: "C.UTF-8", DEBIAN_FRONTEND: "noninteractive" };

async function report(source: string, ask: () => Promise<Partial<SourceReport>>): Promise<SourceReport> {
  const nothing = { source, findings: null, unavailable: null, dataOf: null };
  try {
    const { findings = null, ...rest } = await ask();
    return { ...nothing, ...rest, findings: findings?.slice(0, findingsMax) ?? null };
  } catch (error) {
    return { ...nothing, unavailable: error instanceof Error ? firstLine(error.message) : "it failed" };
  }
}

/**
 * Returns options by which apt uses only the keys and mirrors of the host, with the image's status, separate lists and
 * no configuration.
 */
function aptOptions(of: { directory: string; sources: string; status: string }): string[] {
  const settings = {
    "Dir::State::status": of.status,
    "Dir::State::lists": join(of.directory, "lists"),
    "Dir::State::extended_states": "/dev/null",
    "Dir::Cache": join(of.directory, "cache"),
    "Dir::Etc::sourcelist": of.sources,
    "Dir::Etc::sourceparts": "-",
    "Dir::Etc::preferences": "-",
    "Dir::Etc::preferencesparts": "-",
    "Acquire::Languages": "none",
    "APT::Sandbox::User": "root",
    "Debug::NoLocking": "1",
  };
  return Object.entries(settings).flatMap(([name, value]) => ["-o", `${name}=${value}`]);
}

/** Parses os-release(5). A rolling release has no codename. */
export function parseOsRelease(text: string): { id: string | null; codename: string | null } {
  const value = (name: string, pattern: RegExp) => {
    const found = new RegExp(`^${name}=["']?([^"'\\n]*)["']?$`, "m").exec(text)?.[1];
    return found !== undefined && pattern.test(found) ? found : null;
  };
  return { id: value("ID", /^[a-z0-9._-]{1,32}$/), codename: value("VERSION_CODENAME", /^[a-z]{1,32}$/) };
}

/**
 * Parses `apt-get --simulate`: `Inst openssl [3.0.15-1] (3.0.17-1 Debian-Security:12/stable-security
 * [amd64])`.
 */
export function parseUpgrades(output: string): Finding[] {
  return output.split("\n").flatMap((line): Finding[] => {
    const match = /^Inst (\S+) \[([^\]]+)\] \((\S+) ([^)[]*)/.exec(line);
    const [, name = "", installed = "", fixedIn = "", origin = ""] = match ?? [];
    // apt reinstalls the same version if the image's entry for it has other dependencies.
    if (!match || installed === fixedIn || !/security/i.test(origin)) return [];
    return [
      {
        id: `${name}@${fixedIn}`,
        package: name,
        installed,
        fixedIn,
        // The suite gives no severity, and publishes advisories only for faults that deserve one.
        severity: "unknown",
        title: `Debian has a security fix for ${name}`,
        source: "debian-security",
      },
    ];
  });
}

const severities: Readonly<Record<string, Severity>> = {
  critical: "critical",
  high: "high",
  moderate: "medium",
  low: "low",
};

async function npmAudit({ layers, cwd }: ScannedImage, work: string): Promise<Partial<SourceReport>> {
  const [lock, manifest] = await Promise.all([
    readFromLayers(layers, join(cwd, "package-lock.json"), LOCK_MAX_BYTES),
    readFromLayers(layers, join(cwd, "package.json"), LOCK_MAX_BYTES),
  ]);
  if (lock === undefined || manifest === undefined) return { findings: null };
  const directory = join(work, createHash("sha256").update(lock).digest("hex").slice(0, 16));
  await mkdir(directory);
  await writeFile(join(directory, "package-lock.json"), lock);
  await writeFile(join(directory, "package.json"), manifest);
  const { stdout } = await run(
    ["npm", "audit", "--json", "--package-lock-only", "--omit=dev", "--ignore-scripts", "--audit=true"],
    // Exit code 1 means findings.
    { cwd: directory, timeoutMs: NPM_MS, env: npmEnvironment(), okCodes: [0, 1] },
  );
  return { findings: parseAudit(stdout), dataOf: new Date() };
}

/** Parses `npm audit --json` (report version 2). Throws the registry's message if there is no report. */
export function parseAudit(output: string): Finding[] {
  type Via = string | { name?: string; title?: string; url?: string; severity?: string; range?: string };
  const answer = JSON.parse(output) as {
    message?: string;
    error?: { summary?: string; code?: string };
    vulnerabilities?: Record<string, { via?: Via[]; range?: string; fixAvailable?: unknown }>;
  };
  if (!answer.vulnerabilities)
    throw new Error(firstLine(answer.error?.summary || answer.message || "the registry gave no report"));
  const found = new Map<string, Finding>();
  for (const [name, { via = [], range = "" }] of Object.entries(answer.vulnerabilities)) {
    for (const cause of via) {
      // A cause that is only a name is a fault of another package, which has its own entry.
      if (typeof cause === "string") continue;
      const id =
        /(GHSA-[\w-]+|CVE-\d+-\d+)/.exec(cause.url ?? "")?.[1] ?? `${name}: ${cause.title ?? "advisory"}`;
      found.set(`${id} ${name}`, {
        id,
        package: name,
        installed: cause.range ?? range,
        fixedIn: null,
        severity: severities[cause.severity ?? ""] ?? "unknown",
        title: cause.title ?? id,
        source: "npm-audit",
      });
    }
  }
  return [...found.values()];
}

function firstLine(text: string): string {
  return (text.trim().split("\n")[0] ?? "").slice(0, 300);
}
