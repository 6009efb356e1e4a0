/**
 * A program, run as PID 1 of a build: it makes a root of its own out of the few places a builder needs, joins the
 * build's control group, and becomes the builder. A builder has been led out of its context before, by mounts and by
 * links that a Dockerfile named (CVE-2024-1753, CVE-2024-9675): here there is nothing of the host's to be led to.
 *
 *     node enclosure.ts <JSON of an Enclosure>
 *
 * It expects mount, process and network namespaces of its own.
 */
import { mkdir, symlink, writeFile, readlink, copyFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { run } from "../exec.ts";

export interface Enclosure {
  /** An empty directory. */
  root: string;
  /** Path inside → directory of the host. */
  binds: { at: string; from: string; isWritable: boolean }[];
  /** Address of the resolver, for the builder itself; null where it has no network. */
  resolver: string | null;
  /** The `cgroup.procs` of every tree. */
  cgroupProcs: string[];
  argv: string[];
  env: Record<string, string>;
}

const devices = ["null", "zero", "full", "random", "urandom", "tty"];
/** Where Debian keeps what this host trusts; links lead from the first to the second. */
const trusted = ["/etc/ssl/certs", "/etc/ca-certificates"];

async function enter({ root, binds, resolver, cgroupProcs, argv, env }: Enclosure): Promise<never> {
  // "0" is whoever writes it.
  for (const file of cgroupProcs) await writeFile(file, "0");
  await run(["mount", "-t", "tmpfs", "-o", "mode=755,size=64m", "none", root]);
  const at = (path: string) => join(root, path);
  for (const path of [
    "usr",
    "etc",
    "proc",
    "sys",
    "dev/shm",
    "dev/pts",
    "dev/mqueue",
    "tmp",
    "run",
    "var/tmp",
  ])
    await mkdir(at(path), { recursive: true });
  await bind("/usr", at("usr"), false);
  for (const name of ["bin", "sbin", "lib", "lib32", "lib64", "libx32"]) {
    const target = await readlink(`/${name}`).catch(() => undefined);
    if (target !== undefined) await symlink(target, at(name));
  }
  for (const path of trusted) {
    await mkdir(at(path), { recursive: true });
    await bind(path, at(path), false);
  }
  await copyFile("/etc/ld.so.cache", at("etc/ld.so.cache"));
  await writeFile(at("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n");
  await writeFile(at("etc/group"), "root:x:0:\n");
  await writeFile(at("etc/hosts"), "127.0.0.1 localhost\n");
  await writeFile(at("etc/resolv.conf"), resolver === null ? "" : `nameserver ${resolver}\n`);
  await run(["mount", "-t", "proc", "-o", "nosuid,nodev,noexec", "proc", at("proc")]);
  await run(["mount", "-t", "sysfs", "-o", "ro,nosuid,nodev,noexec", "sysfs", at("sys")]);
  await run(["mount", "--rbind", "/sys/fs/cgroup", at("sys/fs/cgroup")]);
  for (const name of devices) {
    await writeFile(at(`dev/${name}`), "");
    await run(["mount", "--bind", `/dev/${name}`, at(`dev/${name}`)]);
  }
  await symlink("/proc/self/fd", at("dev/fd"));
  for (const { at: path, from, isWritable } of binds) {
    await mkdir(at(path), { recursive: true });
    await bind(from, at(path), isWritable);
  }
  await mkdir(at(".old"));
  await run(["pivot_root", root, at(".old")]);
  process.chdir("/");
  await run(["umount", "--lazy", "/.old"]);
  const [program = ""] = argv;
  if (process.execve === undefined) throw new Error("this Node cannot become another program");
  return process.execve(join("/usr/bin", program), argv, env);
}

async function bind(from: string, to: string, isWritable: boolean): Promise<void> {
  await mkdir(dirname(to), { recursive: true });
  await run(["mount", "--bind", from, to]);
  await run(["mount", "-o", `remount,bind,nodev,${isWritable ? "rw" : "ro"}`, to]);
}

await enter(JSON.parse(process.argv[2] ?? "") as Enclosure);
