/**
 * Attacks of a build step on its host, with Dockerfiles that the parser accepts: each barrier is tested
 * without the barrier before it.
 */
import { mkdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { run } from "../../exec.ts";
import { unmountBelow } from "../../mounts.ts";
import { makeTestBuilds, shimBinary } from "../testing/builds.ts";

const builds = makeTestBuilds(null);
const { directory, oci, build, built, expectNothingLeft } = builds;

beforeAll(builds.open);
afterAll(builds.close);
beforeEach(builds.clearCheckout);

/** Numbers of the system calls that Perl makes in these tests, because no program of the base makes them. */
const calls = process.arch === "arm64" ? { keyctl: 219, inotify: 26 } : { keyctl: 250, inotify: 294 };
const countInotify = `my $n = 0; $n++ while syscall(${calls.inotify}, 0) >= 0; $| = 1; print "instances $n\\n";`;

/** Returns the lines that the step printed, without the lines that repeat its command. */
function readPrintedLines(log: string): string[] {
  return log.split("\n").filter((line) => !line.startsWith("STEP ") && !line.includes("$ "));
}

test("runs a step as root of its own user range, without rights over the kernel", async () => {
  const tryTo = (name: string, command: string) =>
    `${command} 2>/dev/null && echo ${name} allowed || echo ${name} denied`;
  const commands = [
    "grep -E 'NoNewPrivs|^Seccomp:' /proc/self/status",
    "echo map $(cat /proc/self/uid_map)",
    tryTo("namespaces", "unshare -Urmn true"),
    tryTo("mounts", "unshare -m true"),
    tryTo("network", "unshare -n true"),
    tryTo("keyring", `perl -e 'exit(syscall(${calls.keyctl}, 0, -4, 0) < 0)'`),
    tryTo("group", "mkdir /sys/fs/cgroup/x"),
    tryTo("freezer", "mkdir /sys/fs/cgroup/freezer/x"),
    tryTo("memory", "mkdir /sys/fs/cgroup/memory/x"),
    tryTo("processes", "echo 0 > /sys/fs/cgroup/cgroup.procs"),
    tryTo("sysctl", "cat /proc/sys/kernel/printk_ratelimit > /proc/sys/kernel/printk_ratelimit"),
    tryTo("sysfs", "echo 0 > /sys/kernel/profiling"),
    tryTo("device", "mknod /tmp/mem c 1 1"),
    tryTo("mount", "mount -t tmpfs none /mnt"),
    "mkfifo /fifo && touch /suid && chmod 4755 /suid && chown 1000:1000 /fifo && echo files made",
  ];
  const { log, image } = await built(`FROM debian:12-slim\nRUN ${commands.join("; ")}\n`);
  const lines = readPrintedLines(log);
  expect(lines).toEqual(expect.arrayContaining(["NoNewPrivs:\t1", "Seccomp:\t2", "files made"]));
  expect(lines.filter((line) => line.endsWith(" allowed"))).toEqual([]);
  expect(lines.filter((line) => line.endsWith(" denied"))).toHaveLength(12);
  const [, first = ""] = /^map 0 (\d+) 65536$/m.exec(log) ?? [];
  expect(Number(first)).toBeGreaterThanOrEqual(2 ** 30);
  // Files have the same owners on disk and inside.
  const made = (
    await run([
      "stat",
      "-c",
      "%u %a",
      ...["fifo", "suid"].map((name) => join(image.layers.at(-1) ?? "", name)),
    ])
  ).stdout;
  expect(made).toBe("1000 644\n0 4755\n");
});

/** Tries to write the current value to a setting of the host. */
const write = (file: string) =>
  `{ test -f ${file} && cat ${file} > /tmp/was && cat /tmp/was > ${file}; } 2>/dev/null && echo written ${file}`;

const files = ["core_pattern", "printk_ratelimit_burst"].map((name) => `/proc/acpi/sys/kernel/${name}`);

test("blocks writes to settings of the host through a volume at /dev (CVE-2025-31133)", async () => {
  // The volume has a tmpfs over the paths that runc masks, and a symlink /dev/null to a file of /proc. runc takes the
  // symlink for the null device.
  await mkdir(join(builds.checkout, "dev"));
  await symlink("/proc/acpi/net/../../../uptime", join(builds.checkout, "dev/null"));
  const { log } = await build(`FROM debian:12-slim
RUN ln -s /proc /p; ln -s /proc /uptime
COPY dev/ /dev/
ENV PLACE=/dev
VOLUME $PLACE
RUN --mount=type=tmpfs,target=/p/acpi --mount=type=tmpfs,target=/p/acpi/net ${files.map(write).join("; ")}; echo tried
`);
  expect(log).not.toMatch(/^written /m);
  await expectNothingLeft();
});

test("blocks writes to settings of the host through mounts that symlinks lead to /dev, /proc and /sys", async () => {
  const { log } = await built(`FROM debian:12-slim
RUN ln -s /proc /p; ln -s /dev /d; ln -s /sys /s
RUN --mount=type=cache,id=d,target=/d --mount=type=tmpfs,target=/p/acpi ${write("/proc/sys/kernel/core_pattern")}; echo tried
RUN --mount=type=tmpfs,target=/s/fs/cgroup mkdir -p /sys/fs/cgroup/x; ${write("/sys/kernel/profiling")}; echo survived
`);
  expect(log).toMatch(/^tried$/m);
  expect(log).toMatch(/^survived$/m);
  expect(log).not.toMatch(/^written /m);
  await expectNothingLeft();
});

test("refuses a cache at /dev with a tmpfs below /proc before a builder reads it", async () => {
  const { error } = await build(`FROM debian:12-slim
RUN --mount=type=cache,id=d,target=/c mkdir -p /c/pts /c/shm /c/mqueue; ln -sfn /proc/acpi/net/../../../uptime /c/null; ln -s /proc /uptime
RUN --mount=type=cache,id=d,target=/dev --mount=type=tmpfs,target=/proc/acpi --mount=type=tmpfs,target=/proc/acpi/net ${write("/proc/acpi/sys/kernel/core_pattern")}
`);
  expect(error?.kind).toBe("image_failed");
  expect(error?.message).toContain("below /dev, /proc or /sys");
});

test("prevents a step from freezing a process in a new group, and leaves no group", async () => {
  const freeze = (tree: string, file: string, value: string) =>
    `mkdir ${tree}/z; (sleep 600 & echo $! > ${tree}/z/cgroup.procs); echo ${value} > ${tree}/z/${file}`;
  await built(
    `FROM debian:12-slim\nRUN ${freeze("/sys/fs/cgroup/freezer", "freezer.state", "FROZEN")}; ${freeze("/sys/fs/cgroup", "cgroup.freeze", "1")}; echo leaving\n`,
  );
  await expectNothingLeft();
});

test("keeps the host's inotify instances when a step exhausts its own", async () => {
  const owner = new AbortController();
  let onHost: Promise<unknown> | undefined;
  const { log, error } = await build(`FROM debian:12-slim\nRUN perl -e '${countInotify} sleep 1000'\n`, {
    signal: owner.signal,
    onLog: (text) => {
      if (!/^instances \d+$/m.test(text)) return;
      onHost ??= run(["perl", "-e", `exit(syscall(${calls.inotify}, 0) < 0)`]).finally(() => owner.abort());
    },
  });
  expect(error?.kind).toBe("interrupted");
  expect(Number(/^instances (\d+)$/m.exec(log)?.[1])).toBeLessThanOrEqual(64);
  await onHost;
});

test("kills the builder and its steps when the enclosing process is killed", async () => {
  const going = build("FROM debian:12-slim\nRUN sleep 4711 & sleep 4711\n");
  const sleeping = async () => (await run(["pgrep", "-f", "^sleep 4711$"], { okCodes: [0, 1] })).stdout;
  await expect.poll(sleeping, { timeout: 60_000 }).not.toBe("");
  const { stdout } = await run(["pgrep", "-P", String(process.pid), "-f", "kontor-shim enclose"]);
  process.kill(Number(stdout), "SIGKILL");
  const { error } = await going;
  expect(error).toBeDefined();
  await expect.poll(sleeping, { timeout: 60_000 }).toBe("");
  await expectNothingLeft();
});

test("names a file whose owner is above the ids of an image", async () => {
  const owner = ["--owner=70000", "--group=70000", "--numeric-owner"];
  await run([
    "tar",
    "--create",
    ...owner,
    "--file",
    join(builds.checkout, "a.tar"),
    "-C",
    builds.checkout,
    "hello.txt",
  ]);
  const { error } = await build("FROM debian:12-slim\nADD a.tar /h/\n");
  expect(error?.kind).toBe("image_failed");
  expect(error?.message).toContain("above 65535");
});

/** Returns the names in a directory of the image as a machine sees it. */
async function namesIn(layers: readonly string[], path: string): Promise<string[]> {
  const at = join(directory, "machine");
  await mkdir(at, { recursive: true });
  try {
    await run([shimBinary, "root", "--at", at, "--", ...layers]);
    return (await run(["ls", join(at, path)])).stdout.split("\n").filter(Boolean);
  } finally {
    await unmountBelow(directory);
  }
}

const emptied = "rm -rf /d/old && mkdir /d/old && touch /d/old/c";

test("hides the old files of a directory that a step deleted and made again, in machines and in later builds", async () => {
  const dockerfile = `FROM debian:12-slim\nRUN mkdir -p /d/old && touch /d/old/a /d/old/b\nRUN ${emptied}\n`;
  const { image } = await built(dockerfile);
  expect(await namesIn(image.layers, "d/old")).toEqual(["c"]);
  const { log } = await built(`${dockerfile}RUN echo has $(ls /d/old)\n`);
  expect(log).toMatch(/^has c$/m);
});

test("hides the old files of a directory that was deleted and made again, in layers of the host's root", async () => {
  const dockerfile =
    "FROM debian:12-slim\nRUN mkdir -p /d/old && touch /d/old/a /d/old/b && echo older\nRUN touch /top\n";
  const { image } = await built(dockerfile);
  // A builder in the host's user namespace leaves an uppermost layer with such a mark.
  const [top = "", ...lower] = image.layers.toReversed();
  const [at, work] = [join(directory, "old"), join(top, "../old-work")];
  await mkdir(at);
  await mkdir(work);
  const options = `lowerdir=${lower.join(":")},upperdir=${top},workdir=${work}`;
  await run(["mount", "-t", "overlay", "overlay", "-o", options, at]);
  await run(["sh", "-c", `cd ${at} && rm -rf d/old && mkdir d/old && touch d/old/c`]);
  await run(["umount", at]);
  await rm(work, { recursive: true });
  await rm(join(oci, "layers-are-marked"));

  await builds.restart();
  expect(await readFile(join(oci, "layers-are-marked"), "utf8")).toBe("");
  const { log } = await built(`${dockerfile}RUN echo has $(ls /d/old)\n`);
  expect(log).toContain("Using cache");
  expect(log).toMatch(/^has c$/m);
  expect(await namesIn(image.layers, "d/old")).toEqual(["c"]);
});

test("opens despite damaged stores of older servers", async () => {
  const stores = { missing: JSON.stringify([{ id: "0".repeat(64) }]), damaged: "[{" };
  for (const [workspace, layers] of Object.entries(stores)) {
    const records = join(oci, "workspaces", workspace, "store/overlay-layers");
    await mkdir(records, { recursive: true });
    await writeFile(join(records, "layers.json"), layers);
  }
  await rm(join(oci, "layers-are-marked"));
  await builds.restart();
  await rm(join(oci, "workspaces/damaged"), { recursive: true });
  await builds.restart();
  expect(await readFile(join(oci, "layers-are-marked"), "utf8")).toBe("");
});
