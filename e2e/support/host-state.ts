/**
 * A server's state on this host, read from the kernel and not from the server. Tests check that no object is left, or
 * that the same processes run as before.
 */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { run } from "@kontor/runtime/exec.ts";

const claims = "/run/kontor/instances";

/** Returns the instance number of this server on the host; undefined if the server never claimed a number. */
export function instanceOf(dataDir: string): number | undefined {
  const name = list(claims).find((claim) => read(join(claims, claim)) === dataDir);
  return name === undefined ? undefined : Number(name);
}

export interface MachineRecord {
  slot: number;
  spec: { id: string; hostname: string };
}

/** Returns every machine with a record, in any state. */
export function machinesOf(dataDir: string): MachineRecord[] {
  const directory = join(dataDir, "machines/machines");
  return list(directory).flatMap((id) => {
    const record = read(join(directory, id, "machine.json"));
    return record === "" ? [] : [JSON.parse(record) as MachineRecord];
  });
}

/** Returns the processes of all machines of the server, or of one machine. */
export function machineProcesses(dataDir: string, machine = ""): number[] {
  const group = `/kontor${instanceOf(dataDir)}/${machine}`;
  return processes().filter((pid) => read(`/proc/${pid}/cgroup`).includes(group));
}

/** Returns the names of a server's objects on this host by kind, except its process, database and images. */
export async function traces(dataDir: string): Promise<Record<string, string[]>> {
  const instance = instanceOf(dataDir);
  const places = [join(dataDir, "machines/"), `/run/kontor/${instance}/`];
  const isOurs = (text: string) => places.some((place) => text.includes(place));
  const links = JSON.parse((await run(["ip", "-json", "link"])).stdout) as { ifname: string }[];
  const rules = JSON.parse((await run(["nft", "-j", "list", "chains"])).stdout) as {
    nftables: { chain?: { table: string; name: string } }[];
  };
  return {
    processes: [
      ...machineProcesses(dataDir).map(String),
      ...processes()
        .filter((pid) => isOurs(read(`/proc/${pid}/cmdline`)))
        .map((pid) => `${pid} ${read(`/proc/${pid}/cmdline`).replaceAll("\0", " ")}`),
    ],
    mounts: read("/proc/self/mountinfo").split("\n").filter(isOurs),
    namespaces: list("/run/netns").filter((name) => name.startsWith(`kv${instance}-`)),
    links: links.map(({ ifname }) => ifname).filter((name) => name.startsWith(`kv${instance}-`)),
    chains: rules.nftables
      .filter(({ chain }) => chain?.table === `kontor${instance}` && /^(from|to)_\d+$/.test(chain.name))
      .map(({ chain }) => chain?.name ?? ""),
    groups: list("/sys/fs/cgroup")
      .flatMap((tree) => [
        join("/sys/fs/cgroup", tree, `kontor${instance}`),
        `/sys/fs/cgroup/kontor${instance}`,
      ])
      .flatMap((parent) => list(parent).map((name) => join(parent, name)))
      .filter((path) => /\/m[a-z0-9]{19}$/.test(path)),
    loops: list("/sys/block")
      .map((device) => read(`/sys/block/${device}/loop/backing_file`))
      .filter((file) => file.startsWith(dataDir)),
    files: places
      .flatMap((place) => list(place).map((name) => join(place, name)))
      .filter((path) => /\/m[a-z0-9]{19}$/.test(path)),
    records: machinesOf(dataDir).map(({ spec }) => spec.id),
  };
}

/** Returns the mount points below a directory, the innermost first. */
export function mountsBelow(directory: string): string[] {
  return read("/proc/self/mountinfo")
    .split("\n")
    .map((line) => line.split(" ")[4] ?? "")
    .filter((path) => path.startsWith(`${directory}/`))
    .toReversed();
}

function processes(): number[] {
  return list("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map(Number);
}

function list(directory: string): string[] {
  try {
    return readdirSync(directory);
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
