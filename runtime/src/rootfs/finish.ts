/** What every root filesystem gets and loses after its steps, whatever they were. */
import { chmod, mkdir, readdir, rm, writeFile } from "node:fs/promises";
import path from "node:path";

/** Mount points of a machine: the guest program, its socket's directory, and where people's files go. */
const DIRECTORIES = [".kontor", ".kontor/run", "workspace", "persist", "proc", "sys", "dev", "tmp", "run"];

const FILES: readonly { path: string; text: string; mode: number }[] = [
  { path: ".kontor/guest", text: "", mode: 0o755 },
  // gVisor mounts memory over a /tmp that is empty, and what is written there then counts twice.
  { path: "tmp/.keep", text: "", mode: 0o644 },
  { path: "etc/resolv.conf", text: "", mode: 0o644 },
  { path: "etc/hostname", text: "localhost\n", mode: 0o644 },
  { path: "etc/hosts", text: "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n", mode: 0o644 },
];

/** What would make two machines the same one, what is the host's own, and what the build left. */
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
  for (const directory of DIRECTORIES) await mkdir(path.join(rootfs, directory), { recursive: true });
  for (const file of FILES) {
    const target = path.join(rootfs, file.path);
    // It may be a symlink that points out of the image.
    await rm(target, { force: true });
    await writeFile(target, file.text, { mode: file.mode });
    await chmod(target, file.mode);
  }
  await chmod(path.join(rootfs, "tmp"), 0o1777);
  await chmod(rootfs, 0o755);
}

/** `*` stands for any part of the last name. */
async function removeMatching(rootfs: string, pattern: string): Promise<void> {
  const directory = path.join(rootfs, path.dirname(pattern));
  const [begin = "", end] = path.basename(pattern).split("*");
  const names = await readdir(directory).catch(() => []);
  const matching = names.filter((name) =>
    end === undefined
      ? name === begin
      : name.length >= begin.length + end.length && name.startsWith(begin) && name.endsWith(end),
  );
  for (const name of matching) await rm(path.join(directory, name), { recursive: true, force: true });
}
