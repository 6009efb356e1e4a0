import { execFile, spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { lstat, mkdir, readFile, readdir, rm, stat, statfs, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from "vitest";
import { Cgroups } from "../cgroup/cgroups.ts";
import { conformance, execute, failureKind, machineSpec } from "../conformance.ts";
import type { MachineExit, MachineId } from "../driver.ts";
import { TEST_IMAGES } from "../rootfs/testing/image.ts";
import { hostPaths, machinePaths } from "../linux/paths.ts";
import { LinuxDriver } from "../linux/driver.ts";
import { INSTANCE, listLeftovers, makeDriver as make } from "../linux/testing/driver.ts";

const exec = promisify(execFile);
const MIB = 1024 * 1024;

conformance("gvisor", make, { isolation: true, checkpoints: true, processesContinue: true });

describe("a real machine", () => {
  let subject: Awaited<ReturnType<typeof make>>;
  let driver: LinuxDriver;
  let cgroups: Cgroups;

  beforeAll(async () => {
    subject = await make();
    ({ driver } = subject);
    cgroups = await Cgroups.detect(`kontor${INSTANCE}`);
  });
  afterAll(() => subject?.dispose());

  async function boot(change: Parameters<typeof machineSpec>[1] = {}) {
    const spec = machineSpec(subject.image, change);
    onTestFinished(() => driver.remove(spec.id));
    await driver.create(spec);
    return spec;
  }

  /** Returns a change of a machine's spec that sets only the resources in `small`. */
  const withResources = (small: Partial<ReturnType<typeof machineSpec>["resources"]>) => ({
    resources: { ...machineSpec("").resources, ...small },
  });

  function exitOf(id: MachineId): Promise<MachineExit["reason"]> {
    return new Promise((resolve) => {
      driver.onExit((which, { reason }) => {
        if (which === id) resolve(reason);
      });
    });
  }

  test("reports a machine that outgrows its headroom as dead, and removes it", async () => {
    const { id } = await boot(withResources({ memoryBytes: 128 * MIB }));
    const reason = exitOf(id);
    // Sets the kernel's limit below the size at which PID 1 kills processes.
    await cgroups.setLimits(id, { vcpus: 1, memoryBytes: 64 * MIB, maxProcesses: 200 }, "native");
    const eater = failureKind(execute(driver, id, "head -c 100M /dev/zero | tail -c 100M"));
    expect(await reason).toBe("out_of_memory");
    expect(await eater).toBe("machine_died");
    const machine = (await driver.list()).find((each) => each.id === id);
    expect(machine).toMatchObject({ state: "dead", exit: { reason: "out_of_memory" } });
    expect(await failureKind(driver.freeze(id))).toBe("not_running");
    await driver.remove(id);
  });

  test("shares unchanged files of a captured image with its base, and leaves out devices and deleted files", async () => {
    const { id } = await boot();
    const [captured, images] = ["captured-host-test", TEST_IMAGES];
    await driver.removeImage(captured);
    onTestFinished(() => driver.removeImage(captured));
    const steps = [
      "rm -r /usr/share/zoneinfo /etc/issue",
      // The link comes first: in the gVisor of 2024-07, a link reverts earlier changes of owner and mode.
      "cp /bin/true /opt/suid && ln /opt/suid /opt/suid2 && chown 7:8 /opt/suid && chmod 4755 /opt/suid",
      "mkfifo /opt/pipe && mknod /opt/disk b 8 0 && touch -d 2001-02-03T04:05:06Z /opt/old",
      "chmod 600 /etc/passwd && mv /etc/profile /etc/profile.moved && ln -s /etc/shadow /opt/link",
    ];
    const ran = await execute(driver, id, steps.join(" && "));
    expect(ran.exit.code, ran.stderr.toString()).toBe(0);
    await driver.captureImage(id, { id: captured, name: "captured" }, { timeoutMs: 60_000 });
    const of = (image: string, name: string) => lstat(join(images, image, "rootfs", name));
    const isGone = (name: string) =>
      of(captured, name).then(
        () => false,
        (error: { code: string }) => error.code === "ENOENT",
      );
    for (const name of ["usr/share/zoneinfo", "etc/issue", "etc/profile", "opt/pipe", "opt/disk"])
      expect(await isGone(name), name).toBe(true);
    const suid = await of(captured, "opt/suid");
    expect([suid.mode & 0o7777, suid.uid, suid.gid, suid.nlink]).toEqual([0o4755, 7, 8, 2]);
    // Only root can reach the setuid program.
    expect((await lstat(join(images, captured))).mode & 0o777).toBe(0o700);
    expect((await of(captured, "opt/old")).mtime.toISOString()).toBe("2001-02-03T04:05:06.000Z");
    expect((await of(captured, "etc/passwd")).mode & 0o777).toBe(0o600);
    expect((await of(subject.image, "etc/passwd")).mode & 0o777).toBe(0o644);
    expect((await of(captured, "usr/bin/git")).ino).toBe((await of(subject.image, "usr/bin/git")).ino);
    const next = await boot({ image: captured });
    const seen = await execute(driver, next.id, "cat /etc/profile.moved | wc -l; ls /opt; git --version");
    expect(seen.stdout.toString()).toMatch(/^[1-9]\d+\nlink\nold\nsuid\nsuid2\ngit version /);
  });

  test("leaves neither machine nor image when a machine is removed during its capture", async () => {
    const { id } = await boot();
    await execute(driver, id, "head -c 200M /dev/urandom > /workspace/large");
    const ours = async () =>
      (await readdir(TEST_IMAGES)).filter((name) => name.startsWith(`.building-${process.pid}-`));
    const capture = failureKind(
      driver.captureImage(id, { id: "captured-cut", name: "cut" }, { timeoutMs: 60_000 }),
    );
    await expect.poll(ours).toHaveLength(1);
    await driver.remove(id);
    expect(["machine_died", "not_running"]).toContain(await capture);
    expect(await ours()).toEqual([]);
    expect((await driver.images()).map((image) => image.id)).not.toContain("captured-cut");
  });

  test("rejects a file in an image whose stated size exceeds the machine's disk", async () => {
    const { id } = await boot();
    await execute(driver, id, "truncate -s 100G /workspace/sparse");
    const capture = driver.captureImage(id, { id: "captured-bomb", name: "bomb" }, { timeoutMs: 60_000 });
    await expect(capture).rejects.toThrow("exceed 1024 MiB");
  });

  test("reports a machine as dead after its processes were killed from outside", async () => {
    const { id } = await boot();
    const reason = exitOf(id);
    await cgroups.killAll(id);
    expect(await reason).toBe("failed");
  });

  test("reports the death of a machine without a connection to the host", async () => {
    const { id } = await boot();
    const reason = exitOf(id);
    // The guest cannot connect again. The call uses the spare connection and succeeds.
    await rm(machinePaths(hostPaths(subject.stateDir, INSTANCE), id).guestSocket);
    for (let spares = 0; spares < 2; spares++)
      await execute(driver, id, { argv: ["true"] }).catch(() => undefined);
    await cgroups.killAll(id);
    expect(await reason).toBe("failed");
  });

  test("reports ENOSPC inside on a full disk, and keeps the machine usable after a deletion", async () => {
    const { id } = await boot(withResources({ diskBytes: 64 * MIB }));
    const filled = await execute(driver, id, "head -c 64M /dev/zero > within && cp within beyond");
    expect(filled.stderr.toString()).toContain("No space left on device");
    expect((await driver.stats(id)).diskBytes).toBeGreaterThanOrEqual(64 * MIB);
    const writing = driver
      .guest(id)
      .writeFile("/workspace/more", Buffer.alloc(32 * MIB), { mode: 0o644, roots: ["/workspace"] });
    expect(await failureKind(writing)).toBe("disk_full");
    expect((await execute(driver, id, "rm within beyond && echo small > small && cat small")).exit.code).toBe(
      0,
    );
  });

  test("stops a fork bomb at maxProcesses, and keeps the machine running", async () => {
    const { id } = await boot(withResources({ maxProcesses: 40 }));
    const bomb = { argv: ["/bin/sh", "-c", "i=0; while [ $i -lt 100 ]; do sleep 60 & i=$((i+1)); done"] };
    expect((await execute(driver, id, bomb)).stderr.toString()).toContain("Cannot fork");
    expect((await execute(driver, id, { argv: ["pkill", "sleep"] })).exit.code).toBe(0);
    expect((await execute(driver, id, { argv: ["echo", "alive"] })).stdout.toString()).toBe("alive\n");
  });

  test("lets a machine write to no file of the host", async () => {
    const { id } = await boot();
    for (const path of ["/.kontor/guest", "/.kontor/run/file", "/etc/resolv.conf"]) {
      expect((await execute(driver, id, `echo > ${path}`)).stderr.toString()).toContain(
        "Read-only file system",
      );
    }
    await execute(
      driver,
      id,
      "head -c 1M /dev/zero > /proc/1/fd/1; echo changed > /etc/hostname; rm -rf /bin/ls",
    );
    const { id: other } = await boot();
    expect((await execute(driver, other, "ls /bin/ls; cat /etc/hostname")).stdout.toString()).toContain(
      "/bin/ls",
    );
    expect(await readdir(join(subject.stateDir, "machines", id))).toEqual(
      expect.arrayContaining(["config.json", "disk", "disk.img", "machine.json"]),
    );
  });

  test("shows programs the cores and the memory of the machine's start", async () => {
    const { id } = await boot(withResources({ vcpus: 1, memoryBytes: 256 * MIB }));
    const seen = await execute(driver, id, "nproc; grep MemTotal /proc/meminfo");
    expect(seen.stdout.toString()).toMatch(/^1\nMemTotal: +262144 kB\n$/);
  });

  test("releases a machine's disk at its removal while other machines run", async () => {
    const [gone, stays] = await Promise.all([boot(), boot()]);
    const image = join(subject.stateDir, "machines", gone.id, "disk.img");
    expect((await exec("losetup", ["--associated", image])).stdout).toContain(image);
    await driver.remove(gone.id);
    await expect.poll(async () => (await exec("losetup", ["--list"])).stdout).not.toContain(gone.id);
    await driver.guest(stays.id).ping();
  });

  test("names the reason of a failed start, and leaves nothing on the host", async () => {
    const broken = await make({ instance: 61, guestBinary: "/nonexistent/guest" });
    onTestFinished(broken.dispose);
    const spec = machineSpec(broken.image);
    expect(await failureKind(broken.driver.create(spec))).toBe("failed");
    expect(await broken.driver.list()).toEqual([]);
    expect(await listLeftovers(broken.stateDir, 61)).toEqual([]);
  });

  test("adopts the machines of a killed server, with their environment", async () => {
    const victim = await make({ instance: 61 });
    onTestFinished(victim.dispose);
    await victim.driver.close();
    const specs = [machineSpec(victim.image), machineSpec(victim.image)];
    const script = `
      const { LinuxDriver } = await import(${JSON.stringify(join(import.meta.dirname, "../linux/driver.ts"))});
      const driver = new LinuxDriver({ ...JSON.parse(process.argv[1]), log: () => {} });
      await driver.open();
      for (const spec of JSON.parse(process.argv[2])) await driver.create(spec);
      process.kill(process.pid, "SIGKILL");`;
    const { log: _, ...plain } = victim.options;
    const argv = ["--input-type=module", "-e", script, JSON.stringify(plain), JSON.stringify(specs)];
    await expect(exec(process.execPath, argv)).rejects.toMatchObject({ signal: "SIGKILL" });
    const next = await victim.again();
    const found = (await next.list()).map(({ id, state }) => `${id} ${state}`);
    expect(found.toSorted()).toEqual(specs.map(({ id }) => `${id} running`).toSorted());
    for (const { id } of specs) {
      expect((await execute(next, id, "printf $BASE")).stdout.toString()).toBe("base");
    }
  });

  const points = ["checkpoint.disconnected", "checkpoint.paused", "checkpoint.written", "checkpoint.stored"];
  const counting =
    // Appends, because a rewritten file is empty for a moment, and a reader would then find nothing.
    "setsid bash -c 'while :; do echo >> n; sleep 0.01; done' >/dev/null 2>&1 &";

  test.each(points)("leaves the machine unchanged when a checkpoint fails at %s", async (point) => {
    const failing = await make({
      instance: 61,
      reached: async (at) => {
        if (at === point) throw new Error(`told to fail at ${at}`);
      },
    });
    onTestFinished(failing.dispose);
    const spec = machineSpec(failing.image);
    await failing.driver.create(spec);
    await execute(failing.driver, spec.id, `${counting} until [ -s n ]; do sleep 0.01; done`);
    const place = join(failing.stateDir, "snapshot");
    await expect(failing.driver.checkpoint(spec.id, place)).rejects.toThrow(point);
    expect(await failing.driver.list()).toMatchObject([{ id: spec.id, state: "running" }]);
    const moves = "a=$(wc -c < n); sleep 0.2; b=$(wc -c < n); [ $b -gt $a ] && printf on";
    expect((await execute(failing.driver, spec.id, moves)).stdout.toString()).toBe("on");
  });

  test.each([...points, "restore.started"])(
    "resumes or removes a machine after kill -9 of the server at %s",
    async (point) => {
      const victim = await make({ instance: 61 });
      onTestFinished(victim.dispose);
      await victim.driver.close();
      const [spec, again] = [machineSpec(victim.image), machineSpec(victim.image)];
      const script = `
        const { LinuxDriver } = await import(${JSON.stringify(join(import.meta.dirname, "../linux/driver.ts"))});
        const [options, spec, again, counting, point, place] = JSON.parse(process.argv[1]);
        const reached = async (at) => { if (at === point) process.kill(process.pid, "SIGKILL"); };
        const driver = new LinuxDriver({ ...options, log: () => {}, reached });
        await driver.open();
        await driver.create(spec);
        const shell = counting + " until [ -s n ]; do sleep 0.01; done";
        const running = await driver.guest(spec.id).spawn({ shell, onDisconnect: "kill" });
        for await (const _ of running.output);
        await running.exit;
        await driver.checkpoint(spec.id, place);
        await driver.remove(spec.id);
        await driver.restore(again, place);`;
      const { log: _, ...plain } = victim.options;
      const place = join(victim.stateDir, "snapshot");
      const input = JSON.stringify([plain, spec, again, counting, point, place]);
      await expect(
        exec(process.execPath, ["--input-type=module", "-e", script, input]),
      ).rejects.toMatchObject({
        signal: "SIGKILL",
      });
      const next = await victim.again();
      const [{ id } = { id: "" }, ...others] = await next.list();
      expect([id, ...others]).toEqual([point === "restore.started" ? again.id : spec.id]);
      await next.thaw(id);
      const moves = "a=$(wc -c < n); sleep 0.2; b=$(wc -c < n); [ $b -gt $a ] && printf on";
      expect((await execute(next, id, moves)).stdout.toString()).toBe("on");
      await next.freeze(id);
      await next.remove(id);
      expect(await next.list()).toEqual([]);
    },
  );

  test("removes a machine that is held for a checkpoint, with its memory", async () => {
    const { id } = await boot();
    const place = join(subject.stateDir, "snapshot");
    onTestFinished(() => rm(place, { recursive: true }));
    await driver.checkpoint(id, place);
    await driver.remove(id);
    await expect(cgroups.processes(id)).resolves.toEqual([]);
  });

  test("rejects a damaged checkpoint, and leaves nothing on the host", async () => {
    const spec = await boot();
    const place = join(subject.stateDir, "snapshot");
    onTestFinished(() => rm(place, { recursive: true }));
    const { files } = await driver.checkpoint(spec.id, place);
    await driver.remove(spec.id);
    const pages = join(place, "pages.img");
    const bytes = await readFile(pages);
    bytes[Math.floor(bytes.length / 2)]! ^= 1;
    await writeFile(pages, bytes);
    expect(files.map(({ name }) => name)).toContain("pages.img");
    expect(await failureKind(driver.restore(spec, place))).toBe("not_restorable");
    expect(await driver.list()).toEqual([]);
  });

  describe("volumes", () => {
    async function newVolume(sizeBytes = 1024 * MIB) {
      const directory = join(subject.stateDir, `volume-${randomUUID()}`);
      onTestFinished(() => rm(directory, { recursive: true, force: true }));
      return { directory, sizeBytes, isNew: true };
    }

    /** Returns the path of a volume's image on the host. */
    const imageOf = ({ directory }: { directory: string }) => join(directory, "volume.ext4");
    async function deviceOf(id: MachineId): Promise<string> {
      const mounts = (await readFile("/proc/self/mountinfo", "utf8")).split("\n");
      return `/sys/dev/block/${mounts.find((line) => line.includes(`${id}/volume `))?.split(" ")[2]}`;
    }
    async function flushes(id: MachineId): Promise<number> {
      const figures = await readFile(`${await deviceOf(id)}/stat`, "utf8");
      return Number(figures.trim().split(/\s+/)[15]);
    }

    test("keeps data that a program synced to a volume, after its machine was killed", async () => {
      const volume = await newVolume();
      const { id } = await boot({ volume });
      await execute(driver, id, { shell: "echo kept > file", cwd: "/persist" });
      const before = await flushes(id);
      await execute(driver, id, { shell: "sync file", cwd: "/persist" });
      expect(await flushes(id)).toBeGreaterThan(before);
      await cgroups.killAll(id);
      await driver.remove(id);
      const again = await boot({ volume });
      expect((await execute(driver, again.id, "cat /persist/file")).stdout.toString()).toBe("kept\n");
    });

    test("caches the content of a volume once: its device bypasses the host's page cache", async () => {
      const { id } = await boot({ volume: await newVolume() });
      expect(await readFile(`${await deviceOf(id)}/loop/dio`, "utf8")).toBe("1\n");
    });

    test("repairs a volume when it is attached after the host lost power", async () => {
      const [volume, cutOff] = [await newVolume(), await newVolume()];
      const { id } = await boot({ volume });
      await execute(driver, id, { shell: "mkdir -p a/b; echo kept > a/b/file; sync", cwd: "/persist" });
      await mkdir(cutOff.directory);
      await exec("cp", ["--sparse=always", imageOf(volume), imageOf(cutOff)]);
      const again = await boot({ volume: cutOff });
      expect((await execute(driver, again.id, "cat /persist/a/b/file")).stdout.toString()).toBe("kept\n");
      await driver.remove(again.id);
      await exec("e2fsck", ["-f", "-n", imageOf(cutOff)]);
    });

    test("releases a volume in every copy of the host's mounts, and waits while a process holds the volume", async () => {
      const volume = await newVolume();
      const { id } = await boot({ volume });
      await execute(driver, id, { shell: "echo kept > file; sync", cwd: "/persist" });
      // A copy of all mounts, such as a machine has during its start. The first copy is idle, the second
      // holds a file open.
      const copy = (shell: string) => {
        const child = spawn("unshare", ["--mount", "--propagation", "private", "sh", "-c", shell]);
        onTestFinished(() => void child.kill("SIGKILL"));
        return { child, isUp: once(child.stdout, "data"), ended: once(child, "exit") };
      };
      const file = join(subject.stateDir, "machines", id, "volume", "file");
      const [idle, holder] = [copy("echo up; exec sleep 60"), copy(`exec 3<${file}; echo up; exec sleep 60`)];
      await Promise.all([idle.isUp, holder.isUp]);
      await driver.remove(id);
      let isHeld = true;
      const again = boot({ volume }).finally(() => expect(isHeld).toBe(false));
      await sleep(500);
      isHeld = false;
      holder.child.kill("SIGKILL");
      const { id: next } = await again;
      expect((await execute(driver, next, "cat /persist/file")).stdout.toString()).toBe("kept\n");
      expect(idle.child.exitCode).toBeNull();
    });

    test("returns space of files deleted from a volume to the host when its machine is removed", async () => {
      const volume = await newVolume();
      const { id } = await boot({ volume });
      const shell = "head -c 100000000 /dev/urandom > big; sync big; rm big; echo small > small";
      await execute(driver, id, { shell, cwd: "/persist" });
      const readAllocatedBytes = async () => (await stat(imageOf(volume))).blocks * 512;
      expect(await readAllocatedBytes()).toBeGreaterThan(100_000_000);
      await driver.remove(id);
      expect(await readAllocatedBytes()).toBeLessThan(10_000_000);
      expect(await driver.volumeUsage(volume.directory)).toBeLessThan(1_000_000);
      expect(await listLeftovers(volume.directory, INSTANCE)).toEqual([]);
    });

    test.each([1, 100])("fits %i GiB of files in a volume of that size", async (gib) => {
      const volume = await newVolume(gib * 1024 * MIB);
      const { id } = await boot({ volume });
      const { bavail, bsize } = await statfs(join(subject.stateDir, "machines", id, "volume"));
      expect(bavail * bsize).toBeGreaterThanOrEqual(volume.sizeBytes);
      expect(bavail * bsize).toBeLessThan(volume.sizeBytes * 1.02);
    });

    test.each([
      ["an open file", "exec 3>lost; rm lost; touch /up; exec sleep 61"],
      [
        "a file that it has open and that was replaced",
        "echo a > lost; exec 3<lost; touch new; mv new lost; touch /up; exec sleep 61",
      ],
      ["its working directory", "mkdir lost; cd lost; rmdir ../lost; touch /up; exec sleep 61"],
      ["its program", "cp /bin/sleep lost; (sleep 0.3; rm lost; touch /up) & exec ./lost 61"],
    ])(
      "rejects a checkpoint of a process with a deleted file on the volume, and names the process and the file: %s",
      async (_, hold) => {
        const { id } = await boot({ volume: await newVolume() });
        // A deleted file on the machine's own disk does no harm.
        for (const cwd of ["/workspace", "/persist"]) {
          await execute(driver, id, {
            shell: `rm -f /up; setsid bash -c '${hold}' >/dev/null 2>&1 & until [ -e /up ]; do sleep 0.01; done`,
            cwd,
          });
        }
        const place = join(subject.stateDir, "snapshot");
        await expect(driver.checkpoint(id, place)).rejects.toMatchObject({
          kind: "not_checkpointable",
          details: { pid: expect.any(Number), process: expect.any(String), file: "/persist/lost" },
        });
        await execute(driver, id, "pkill sleep; pkill lost");
        expect((await execute(driver, id, "echo alive")).stdout.toString()).toBe("alive\n");
        onTestFinished(() => rm(place, { recursive: true }));
        await driver.checkpoint(id, place);
      },
    );
  });

  test("restores a paused machine after the server got another guest program", async () => {
    const place = join(subject.stateDir, "snapshot");
    onTestFinished(() => rm(place, { recursive: true }));
    const spec = await boot();
    await execute(driver, spec.id, "echo kept > kept");
    await driver.checkpoint(spec.id, place);
    await driver.remove(spec.id);
    await driver.close();
    const other = join(subject.stateDir, "another-guest");
    await writeFile(
      other,
      Buffer.concat([await readFile(subject.options.guestBinary), Buffer.from("newer")]),
      {
        mode: 0o755,
      },
    );
    driver = new LinuxDriver({ ...subject.options, guestBinary: other });
    await driver.open();
    await driver.restore(spec, place);
    expect((await execute(driver, spec.id, "cat kept")).stdout.toString()).toBe("kept\n");
    await boot();
    await driver.close();
    driver = await subject.again();
  });

  test("checkpoints a machine with calls of every kind in flight", async () => {
    const spec = await boot();
    const { id } = spec;
    const place = join(subject.stateDir, "snapshot");
    onTestFinished(() => rm(place, { recursive: true }));
    const listen =
      "use Socket; socket S,2,1,0; bind S,sockaddr_in(8080,INADDR_ANY); listen S,9; accept C,S; sleep 60";
    const shells = ["sleep 60", "cat", "yes", `exec perl -e '${listen}'`];
    const kinds = ["kill", "run_on"] as const;
    const started = shells.flatMap((shell) =>
      kinds.map((onDisconnect) => driver.guest(id).spawn({ shell, onDisconnect })),
    );
    const running = await Promise.all(started);
    // Unread data waits in the machine, and must not block the checkpoint.
    for (const { exit } of running) exit.catch(() => {});
    await driver.guest(id).startCommand({ id: "cmd_followed", shell: "sleep 60" });
    const followed = failureKind(driver.guest(id).followCommand("cmd_followed", 0).next());
    const tunnel = await vi.waitFor(() => driver.guest(id).connect(8080), { timeout: 10_000 });
    tunnel.on("error", () => {});
    await driver.checkpoint(id, place);
    expect(await followed).not.toBe("none");
    tunnel.destroy();
    for (const each of running) each.close();
    await driver.thaw(id);
    expect((await execute(driver, id, "echo alive")).stdout.toString()).toBe("alive\n");
  });

  test("continues reads, sleeps and waits after a checkpoint and after a restore", async () => {
    const spec = await boot();
    const calls = {
      sleep: "perl -e '$| = 1; print 1; sleep 600'",
      pipe: "perl -e '$| = 1; pipe(R, W); print 1; <R>'",
      select: "perl -e '$| = 1; print 1; select(undef, undef, undef, 600)'",
      wait: "printf 1; sleep 600 & wait",
    };
    for (const [id, shell] of Object.entries(calls))
      await driver.guest(spec.id).startCommand({ id, shell: `${shell}; printf ended` });
    const outputs = async () =>
      Promise.all(
        Object.keys(calls).map(async (id) => (await driver.guest(spec.id).getCommand(id)).outputBytes),
      );
    await expect.poll(outputs).toEqual([1, 1, 1, 1]);
    await driver.checkpoint(spec.id, join(subject.stateDir, "model"), { keepRunning: true });
    const paused = join(subject.stateDir, "waiting");
    await driver.checkpoint(spec.id, paused);
    await driver.remove(spec.id);
    await driver.restore(spec, paused);
    for (const id of Object.keys(calls)) {
      // A process that was interrupted exits as soon as it runs. A process that ignored the signal continues.
      await driver.guest(spec.id).signalCommand(id, 18);
    }
    expect((await execute(driver, spec.id, "echo alive")).stdout.toString()).toBe("alive\n");
    expect(await outputs()).toEqual([1, 1, 1, 1]);
  });

  test("removes machines without a record when a driver opens", async () => {
    const { id } = await boot();
    await driver.close();
    await rm(join(subject.stateDir, "machines", id, "machine.json"));
    driver = await subject.again();
    expect((await driver.list()).map((machine) => machine.id)).not.toContain(id);
    expect(await cgroups.list()).not.toContain(id);
    expect(await readdir(join(subject.stateDir, "machines"))).not.toContain(id);
  });

  test("leaves nothing on the host after the last machine is removed", async () => {
    const specs = await Promise.all([boot(), boot()]);
    await driver.freeze(specs[1]?.id ?? "");
    await Promise.all(specs.map(({ id }) => driver.remove(id)));
    await driver.waitUntilIdle();
    await expect.poll(() => listLeftovers(subject.stateDir, INSTANCE), { timeout: 10_000 }).toEqual([]);
  });

  test("leaves no namespace, interface, table or control group when a driver is uninstalled", async () => {
    const installed = await make({ instance: 61 });
    const spec = machineSpec(installed.image, { network: "open" });
    await installed.driver.create(spec);
    await installed.dispose();
    const [links, namespaces, tables, groups] = await Promise.all([
      exec("ip", ["-o", "link"]),
      exec("ip", ["netns", "list"]),
      exec("nft", ["list", "tables"]),
      exec("find", ["/sys/fs/cgroup", "-maxdepth", "2", "-name", "kontor61"]),
    ]);
    for (const { stdout } of [links, namespaces]) expect(stdout).not.toContain("kv61-");
    expect(tables.stdout).not.toMatch(/kontor61|kv61/);
    expect(groups.stdout).toBe("");
  });
});
