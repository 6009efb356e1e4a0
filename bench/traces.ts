/**
 * Everything of one server that can be seen on the host: what its machines would leave behind if nobody cleaned up.
 * Names carry the server's instance number (network, control groups, /run/kontor/<n>) or its data directory.
 */
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { run } from "@kontor/runtime/exec.ts";

export const traceKinds = [
  "processes",
  "mounts",
  "namespaces",
  "interfaces",
  "nft objects",
  "cgroups",
  "loop devices",
  "files",
] as const;
export type TraceKind = (typeof traceKinds)[number];
export type Traces = Record<TraceKind, string[]>;

export async function hostTraces(dataDirectory: string): Promise<Traces> {
  const instance = instanceOf(dataDirectory);
  const runDirectory = `/run/kontor/${instance}`;
  const isOurs = (text: string) => text.includes(`${dataDirectory}/`) || text.includes(`${runDirectory}/`);
  return {
    processes: machineProcesses(isOurs),
    mounts: readFileSync("/proc/self/mountinfo", "utf8").split("\n").filter(isOurs),
    namespaces: names("/run/netns", `kv${instance}-`),
    interfaces: names("/sys/class/net", `kv${instance}-`),
    "nft objects": await nftObjects(`kontor${instance}`),
    cgroups: cgroups(`kontor${instance}`),
    "loop devices": loopDevices(isOurs),
    files: [...below(join(dataDirectory, "machines")), ...below(runDirectory)],
  };
}

/** What is there now and was not before. */
export function left(before: Traces, after: Traces): Traces {
  return Object.fromEntries(
    traceKinds.map((kind) => [kind, after[kind].filter((one) => !before[kind].includes(one))]),
  ) as Traces;
}

function instanceOf(dataDirectory: string): number {
  const claims = "/run/kontor/instances";
  const own = readdirSync(claims).find((name) => readFileSync(join(claims, name), "utf8") === dataDirectory);
  if (own === undefined) throw new Error(`${claims} has no number for ${dataDirectory}`);
  return Number(own);
}

/** runsc, its gofer and the shim name the machine's directories in their arguments; PostgreSQL and the server do not. */
function machineProcesses(isOurs: (text: string) => boolean): string[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .flatMap((pid) => {
      const argv = read(`/proc/${pid}/cmdline`).split("\0");
      return /runsc|shim/.test(argv.join(" ")) && argv.some(isOurs)
        ? [`${pid} ${argv.join(" ").slice(0, 200)}`]
        : [];
    });
}

async function nftObjects(table: string): Promise<string[]> {
  const { stdout } = await run(["nft", "--json", "list", "ruleset"]);
  const { nftables } = JSON.parse(stdout) as {
    nftables: Record<string, { table?: string; name?: string }>[];
  };
  return nftables.flatMap((entry) => {
    const [[kind, object] = ["", undefined]] = Object.entries(entry);
    if (!object || (object.table ?? object.name) !== table) return [];
    // Counters count and handles differ from one listing to the next of the same rule.
    const text = JSON.stringify({ kind, ...object }, (key, value: unknown) =>
      ["packets", "bytes", "handle"].includes(key) ? undefined : value,
    );
    return [text];
  });
}

function cgroups(name: string): string[] {
  const trees = new Set(
    readFileSync("/proc/self/mountinfo", "utf8")
      .split("\n")
      .filter((line) => / - cgroup2? /.test(line))
      .map((line) => line.split(" ")[4] ?? ""),
  );
  return Array.from(trees, (tree) => directoriesBelow(join(tree, name))).flat();
}

function directoriesBelow(directory: string): string[] {
  return entries(directory).flatMap((entry) => {
    const path = join(directory, entry.name);
    return entry.isDirectory() ? [path, ...directoriesBelow(path)] : [];
  });
}

function loopDevices(isOurs: (text: string) => boolean): string[] {
  return readdirSync("/sys/block")
    .filter((name) => name.startsWith("loop"))
    .flatMap((name) => {
      const file = read(`/sys/block/${name}/loop/backing_file`).trim();
      return isOurs(file) ? [`${name} ${file}`] : [];
    });
}

function below(directory: string): string[] {
  return entries(directory).flatMap((entry) => {
    const path = join(directory, entry.name);
    return entry.isDirectory() ? [path, ...below(path)] : [path];
  });
}

const names = (directory: string, prefix: string): string[] =>
  entries(directory).flatMap(({ name }) => (name.startsWith(prefix) ? [name] : []));

function entries(directory: string) {
  try {
    return readdirSync(directory, { withFileTypes: true });
  } catch {
    return [];
  }
}

function read(file: string): string {
  try {
    return readFileSync(file, "utf8");
  } catch {
    return "";
  }
}
