/**
 * The ordinary user of a sandbox's image, for programs that cannot or should not run as root. The image shares its
 * files with another image by hard links, so each file that changes is replaced by a new file.
 */
import { chmod, chown, lstat, mkdir, readFile, readdir, rename, symlink, writeFile } from "node:fs/promises";
import path from "node:path";
import { RuntimeError } from "../driver.ts";

const NAME = "user";
const ID = 1000;
const HOME = `home/${NAME}`;

/** Lines as `useradd` writes them. The password is locked, so no sign-in with a password works. */
const LINES: readonly { path: string; line: string }[] = [
  { path: "etc/passwd", line: `${NAME}:x:${ID}:${ID}::/${HOME}:/bin/bash` },
  { path: "etc/group", line: `${NAME}:x:${ID}:` },
  { path: "etc/shadow", line: `${NAME}:!:19000:0:99999:7:::` },
  { path: "etc/gshadow", line: `${NAME}:!::` },
];

/** Text of a file that PID 1 reads. Debian's sudo(8) also reads it, if it is installed and the engine allows it. */
const SUDOERS = `${NAME} ALL=(ALL:ALL) NOPASSWD: ALL\n`;

/** Adds the user to a root filesystem of Kontor's own recipes, with a home and `sudo`. */
export async function addUser(rootfs: string): Promise<void> {
  const at = (name: string) => path.join(rootfs, name);
  for (const { path: name, line } of LINES) await append(at(name), line);
  await mkdir(at(HOME), { recursive: true });
  for (const name of await readdir(at("etc/skel"))) {
    await writeFile(at(`${HOME}/${name}`), await readFile(at(`etc/skel/${name}`)), { mode: 0o644 });
    await chown(at(`${HOME}/${name}`), ID, ID);
  }
  await chown(at(HOME), ID, ID);
  await chmod(at(HOME), 0o700);
  // The directory still belongs to root: git refuses to work for root in a directory of another user.
  await chmod(at("workspace"), 0o1777);
  await mkdir(at("etc/sudoers.d"), { recursive: true, mode: 0o750 });
  await writeFile(at("etc/sudoers.d/kontor"), SUDOERS, { mode: 0o440, flag: "wx" });
  // gVisor ignores the set-user-ID bit, so `sudo` is a request to PID 1 (guest/src/sudo/sudo.c).
  await symlink("/.kontor/guest", at("usr/local/bin/sudo"));
}

async function append(file: string, line: string): Promise<void> {
  const { mode, uid, gid } = await lstat(file);
  const text = await readFile(file, "utf8");
  const [name = "", , id = ""] = line.split(":");
  const isTaken = text.split("\n").some((other) => {
    const [otherName, , otherId] = other.split(":");
    return otherName === name || (/^(?:passwd|group)$/.test(path.basename(file)) && otherId === id);
  });
  if (isTaken) throw new RuntimeError("image_failed", `${path.basename(file)} has a user ${name} already`);
  await writeFile(`${file}.new`, `${text.replace(/\n*$/, "\n")}${line}\n`, { mode: 0o600, flag: "wx" });
  await chown(`${file}.new`, uid, gid);
  await chmod(`${file}.new`, mode & 0o7777);
  await rename(`${file}.new`, file);
}
