/**
 * Completes a root filesystem after its steps, whatever they were: adds and deletes entries. The filesystem
 * may come from an untrusted machine, where a symlink on the way to a file could lead out of it. So every
 * name below is reached through real directories only.
 */
import { chmod, lstat, mkdir, readdir, rm, writeFile } from "node:fs/promises";
import path from "node:path";

/**
 * Mount points of a machine: the guest program, its socket's directory, and the directories for users' files.
 */
const DIRECTORIES = [".kontor", ".kontor/run", "workspace", "persist", "proc", "sys", "dev", "tmp", "run"];

const FILES: readonly { path: string; text: string; mode: number }[] = [
  { path: ".kontor/guest", text: "", mode: 0o755 },
  // gVisor mounts memory over an empty /tmp, and files there would then count twice.
  { path: "tmp/.keep", text: "", mode: 0o644 },
  { path: "etc/resolv.conf", text: "", mode: 0o644 },
  { path: "etc/hostname", text: "localhost\n", mode: 0o644 },
  { path: "etc/hosts", text: "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n", mode: 0o644 },
];

/** Files that would give two machines the same identity, files of the host itself, and remains of the build. */
const REMOVED = [
  "etc/machine-id",
  "var/lib/dbus/machine-id",
  "etc/ssh/ssh_host_*_key",
  "etc/ssh/ssh_host_*_key.pub",
  "etc/apt/auth.conf.d/*",
  "var/lib/systemd/random-seed",
  "var/log/*.log",
  "var/log/apt/*",
  "var/cache/apt/*.bin",
  "var/cache/apt/archives/*.deb",
  "var/cache/ldconfig/*",
  "var/lib/apt/lists/*",
  "root/.npm",
  "root/.bash_history",
];

export async function finish(rootfs: string): Promise<void> {
  for (const pattern of REMOVED) await removeMatching(rootfs, pattern);
  for (const directory of DIRECTORIES) await makeDirectory(rootfs, directory);
  for (const file of FILES) {
    await makeDirectory(rootfs, path.dirname(file.path));
    const target = path.join(rootfs, file.path);
    await rm(target, { recursive: true, force: true });
    await writeFile(target, file.text, { mode: file.mode, flag: "wx" });
    await chmod(target, file.mode);
  }
  await chmod(path.join(rootfs, "tmp"), 0o1777);
  await chmod(rootfs, 0o755);
}

/** Makes a real directory of that name, and deletes any other kind of entry there. */
async function makeDirectory(rootfs: string, name: string): Promise<void> {
  let at = rootfs;
  for (const component of name.split("/")) {
    at = path.join(at, component);
    if (await isDirectory(at)) continue;
    await rm(at, { force: true });
    await mkdir(at, { mode: 0o755 });
  }
}

async function isDirectory(at: string): Promise<boolean> {
  const info = await lstat(at).catch(() => undefined);
  return info?.isDirectory() === true;
}

/** Deletes the files that match the pattern. `*` matches any part of the last name. */
async function removeMatching(rootfs: string, pattern: string): Promise<void> {
  let directory = rootfs;
  for (const component of path.dirname(pattern).split("/")) {
    directory = path.join(directory, component);
    if (!(await isDirectory(directory))) return;
  }
  const [begin = "", end] = path.basename(pattern).split("*");
  const names = await readdir(directory);
  const matching = names.filter((name) =>
    end === undefined
      ? name === begin
      : name.length >= begin.length + end.length && name.startsWith(begin) && name.endsWith(end),
  );
  for (const name of matching) await rm(path.join(directory, name), { recursive: true, force: true });
}
