import { link, lstat, mkdir, mkdtemp, readFile, readdir, readlink, rm, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { addUser } from "./user.ts";

const files = {
  "etc/passwd": "root:x:0:0:root:/root:/bin/bash\n",
  "etc/group": "root:x:0:\n",
  "etc/shadow": "root:*:19000:0:99999:7:::\n",
  "etc/gshadow": "root:*::\n",
  "etc/skel/.bashrc": "# hello\n",
};

async function roots(change: Partial<typeof files> = {}) {
  const top = await mkdtemp(path.join(os.tmpdir(), "kontor-user-"));
  onTestFinished(() => rm(top, { recursive: true, force: true }));
  const [base, rootfs] = [path.join(top, "base"), path.join(top, "rootfs")];
  for (const [name, text] of Object.entries({ ...files, ...change })) {
    for (const root of [base, rootfs]) await mkdir(path.dirname(path.join(root, name)), { recursive: true });
    await writeFile(path.join(base, name), text, { mode: 0o640 });
    await link(path.join(base, name), path.join(rootfs, name));
  }
  await mkdir(path.join(rootfs, "usr/local/bin"), { recursive: true });
  await mkdir(path.join(rootfs, "workspace"));
  return { base, rootfs };
}

// Only root can change a file's owner.
test.runIf(process.getuid?.() === 0)(
  "adds a user with a home and sudo, and leaves the files of the base image unchanged",
  async () => {
    const { base, rootfs } = await roots();
    await addUser(rootfs);
    const read = (name: string) => readFile(path.join(rootfs, name), "utf8");
    expect(await read("etc/passwd")).toBe(`${files["etc/passwd"]}user:x:1000:1000::/home/user:/bin/bash\n`);
    expect(await read("etc/group")).toBe(`${files["etc/group"]}user:x:1000:\n`);
    expect((await read("etc/shadow")).split("\n")[1]).toMatch(/^user:!:/);
    expect((await lstat(path.join(rootfs, "etc/shadow"))).mode & 0o777).toBe(0o640);
    for (const name of ["home/user", "home/user/.bashrc"]) {
      expect(await lstat(path.join(rootfs, name))).toMatchObject({ uid: 1000, gid: 1000 });
    }
    expect(await lstat(path.join(rootfs, "workspace"))).toMatchObject({ uid: 0, mode: 0o41777 });
    expect(await read("home/user/.bashrc")).toBe("# hello\n");
    expect(await read("etc/sudoers.d/kontor")).toBe("user ALL=(ALL:ALL) NOPASSWD: ALL\n");
    expect(await readlink(path.join(rootfs, "usr/local/bin/sudo"))).toBe("/.kontor/guest");
    for (const [name, text] of Object.entries(files))
      expect(await readFile(path.join(base, name), "utf8")).toBe(text);
    expect(await readdir(path.join(rootfs, "etc"))).not.toContain("passwd.new");
  },
);

test("refuses an image that already has a user with the name or the number", async () => {
  for (const line of ["user:x:7:7::/:/bin/sh", "other:x:1000:1000::/:/bin/sh"]) {
    const { rootfs } = await roots({ "etc/passwd": `${files["etc/passwd"]}${line}\n` });
    await expect(addUser(rootfs)).rejects.toMatchObject({ kind: "image_failed" });
  }
});
