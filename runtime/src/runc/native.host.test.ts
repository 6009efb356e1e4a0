import { execFile } from "node:child_process";
import { chmod, mkdir, mkdtemp, readFile, readdir, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from "vitest";
import { Cgroups } from "../cgroup/cgroups.ts";
import { conformance, execute, failureKind, machineId, machineSpec } from "../conformance.ts";
import type { Isolation, MachineExit, MachineId, MachineSpec } from "../driver.ts";
import type { LinuxDriver } from "../linux/driver.ts";
import { INSTANCE, listLeftovers, makeDriver as make } from "../linux/testing/driver.ts";
import { DNS_ADDRESS, METADATA_ADDRESS, startInternet, WEB_ADDRESS } from "../network/testing/internet.ts";

const exec = promisify(execFile);
const MIB = 1024 * 1024;

/**
 * Perl code that makes a message with `$count` descriptors for sendmsg(2). The pointers are valid as long as the Perl
 * variables live.
 */
const MESSAGE = `
  sub message { my $count = shift; our $data = "x"; our $iov = pack("P Q", $data, 1);
    our $control = pack("Q l l l*", 16 + 4 * $count, 1, 1, (2) x $count);
    $control .= "\\0" x (-length($control) % 8);
    pack("Q L x4 P Q P Q i x4", 0, 0, $iov, 1, $control, length $control, 0) }`;

/**
 * Perl code that exhausts inotify instances (of four users), descriptors in flight, pipe pages and processes, and keeps
 * them in use. At the end it releases five processes, because the test needs some to read the result.
 */
const TAKE_ALL = `use Socket; ${MESSAGE} my (%taken, @held);
  for my $user (0 .. 3) { $> = $user; $taken{inotify}++ while syscall(294, 0) >= 0; $taken{ofOneUser} ||= $taken{inotify}; $> = 0 }
  my @key = ("user", "k", "v"); syscall(248, @key, 1, -4); $taken{key} = $! + 0;
  my $message = message(253);
  until (($taken{sendmsg} // 0) == 109) {
    socketpair(my $a, my $b, AF_UNIX, SOCK_STREAM, PF_UNSPEC) or last; push @held, $a, $b;
    1 while syscall(46, fileno $a, $message, 0x4040) >= 0; $taken{sendmsg} = $! + 0 }
  while (pipe(my $r, my $w)) { push @held, $r, $w; $taken{pipe} = fcntl($w, 1032, 0); last if $taken{pipe} < 65536 }
  my @children; while (1) { my $child = fork; if (!defined $child) { $taken{fork} = $! + 0; last }
    if (!$child) { sleep 600; exit } push @children, $child }
  kill 9, splice @children, 0, 5; wait for 1 .. 5;
  open my $file, ">", "/tmp/new"; print $file "{", join(",", map("\\"$_\\":$taken{$_}", keys %taken)), "}"; close $file;
  rename "/tmp/new", "/tmp/taken"; sleep 600`;

const PROBE = `use Socket; ${MESSAGE} my $ok = sub { shift() ? "ok" : "fails: $!" };
  print "inotify ", $ok->(syscall(294, 0) >= 0); pipe(my $r, my $w); print ", pipe ", fcntl($w, 1032, 0);
  socketpair(my $a, my $b, AF_UNIX, SOCK_STREAM, PF_UNSPEC); my $message = message(1);
  print ", descriptor ", $ok->(syscall(46, fileno $a, $message, 0x4040) >= 0);
  my $child = fork; exit if defined $child && !$child; print ", fork ", $ok->(defined $child)`;

const native = async () => ({ ...(await make()), isolation: "native" as const });

conformance("native", native, { isolation: true, checkpoints: false, processesContinue: false });

describe("a machine on the host's kernel", () => {
  let subject: Awaited<ReturnType<typeof make>>;
  let driver: LinuxDriver;
  let cgroups: Cgroups;

  beforeAll(async () => {
    subject = await make();
    ({ driver } = subject);
    cgroups = await Cgroups.detect(`kontor${INSTANCE}`);
  });
  afterAll(() => subject?.dispose());

  async function boot(change: Partial<MachineSpec> = {}) {
    const spec = machineSpec(subject.image, { isolation: "native", ...change });
    onTestFinished(() => driver.remove(spec.id));
    await driver.create(spec);
    return spec;
  }

  const withResources = (small: Partial<MachineSpec["resources"]>) => ({
    resources: { ...machineSpec("").resources, ...small },
  });
  const out = async (id: MachineId, shell: string) => (await execute(driver, id, shell)).stdout.toString();

  /** Returns the user of the host that is root inside the machine. */
  const firstUser = async (id: MachineId) =>
    Number((await out(id, "cat /proc/self/uid_map")).trim().split(/ +/)[1]);

  function exitOf(id: MachineId): Promise<MachineExit["reason"]> {
    return new Promise((resolve) => {
      driver.onExit((which, { reason }) => {
        if (which === id) resolve(reason);
      });
    });
  }

  /**
   * Makes layers in the format of overlayfs, each with the files that `make` writes, above the layers of an image with
   * a shell.
   */
  async function makeLayers(...make: ((layer: string) => Promise<unknown>)[]): Promise<string> {
    const directory = await mkdtemp(join(tmpdir(), "kontor-layers-"));
    onTestFinished(() => rm(directory, { recursive: true }));
    const layers = await Promise.all(
      make.map(async (fill, index) => {
        const layer = join(directory, String(index));
        await mkdir(layer);
        await fill(layer);
        return layer;
      }),
    );
    const image = { id: `layers-${machineId()}`, name: "layers", env: {}, sizeBytes: 1 };
    onTestFinished(() => driver.removeImage(image.id));
    await driver.importImage({ ...image, layers: [...subject.layers, ...layers] });
    return image.id;
  }

  test("has a root without rights on the host, with few capabilities and a filter of system calls", async () => {
    const { id } = await boot();
    const first = await firstUser(id);
    expect(await out(id, "cat /proc/self/uid_map /proc/self/gid_map | tr -s ' '")).toBe(
      ` 0 ${first} 65536\n`.repeat(2),
    );
    const status = await out(id, "cat /proc/self/status");
    for (const line of [
      "NoNewPrivs:\t1",
      "Seccomp:\t2",
      "CapBnd:\t00000000000004fb",
      "CapEff:\t00000000000004fb",
    ])
      expect(status).toContain(line);
    const [pid] = await cgroups.processes(id);
    expect(await readFile(`/proc/${pid}/status`, "utf8")).toContain(`Uid:${`\t${first}`.repeat(4)}\n`);
  });

  test("refuses system calls that inspect or change the host", async () => {
    const { id } = await boot();
    // Numbers on x86_64: mount, umount2, unshare, setns, keyctl, bpf, process_vm_writev, open_by_handle_at
    // and add_key.
    const calls = [
      "165,0,0,0,0,0",
      "166,0,0",
      "272,1<<28",
      "308,0,0",
      "250,0,0",
      "321,0,0,0",
      "311,1,0,0,0,0,0",
    ];
    const perl = [...calls, "304,0,0,0", "248,0,0,0,0,0"]
      .map((call) => `syscall(${call}); print $! + 0, " ";`)
      .join("");
    if (process.arch === "x64") expect(await out(id, `perl -e '${perl}'`)).toBe("1 ".repeat(9));
    for (const shell of [
      "mount -t tmpfs none /mnt",
      "mknod /tmp/disk b 8 0",
      "unshare -r true",
      "unshare -n true",
      "dmesg",
      "echo 1 > /proc/sys/kernel/panic",
      "echo b > /proc/sysrq-trigger",
      "head -c 1 /proc/kcore | grep .",
      "ip link set eth0 down || ip addr add 10.0.0.3/30 dev eth0",
      "chroot / true",
      "echo 0 > /sys/class/net/lo/mtu",
      "hostname other",
    ])
      expect((await execute(driver, id, shell)).exit.code, shell).not.toBe(0);
    expect(await out(id, "ls /sys/firmware /proc/acpi /sys/fs/cgroup; cat /proc/keys")).toBe(
      "/proc/acpi:\n\n/sys/firmware:\n\n/sys/fs/cgroup:\n",
    );
    expect(await out(id, "ls /sys/class/net")).toBe("eth0\nlo\n");
    expect(await out(id, "ls /proc | grep -c '^[0-9]*$'")).toMatch(/^[2-9]\n$/);
  });

  test("lets its root install packages, change owners, become another user and listen on port 80", async () => {
    const { id } = await boot();
    const shell = `set -e; install -o 1000 -g 1000 /bin/true /opt/own; stat -c %u:%g /opt/own; sed -i s/root:x/root:x/ /etc/passwd
      chown 65535 /opt/own; su -s /bin/sh -c 'id -u' nobody
      perl -e 'use Socket; socket S,2,1,0; bind S,sockaddr_in(80,INADDR_ANY) or die; listen S,9; print "listens\\n"'`;
    expect(await out(id, shell)).toBe("1000:1000\n65534\nlistens\n");
  });

  // Numbers of system calls are those of x86_64.
  test.skipIf(process.arch !== "x64")(
    "leaves the kernel resources of other machines and the host when a machine exhausts its own",
    async () => {
      const small = withResources({ maxProcesses: 60 });
      const [greedy, neighbour] = await Promise.all([boot(small), boot(small)]);
      await driver.guest(greedy.id).startCommand({ id: "cmd_take", argv: ["perl", "-e", TAKE_ALL] });
      await expect.poll(() => out(greedy.id, "cat /tmp/taken 2>/dev/null"), { timeout: 60_000 }).not.toBe("");
      const taken = JSON.parse(await out(greedy.id, "cat /tmp/taken")) as Record<string, number>;
      // Each user gets 64 instances; add_key is refused (EPERM), and sendmsg and fork reach their limits (ETOOMANYREFS,
      // EAGAIN).
      expect(taken["inotify"]).toBeGreaterThanOrEqual(64);
      expect(taken).toMatchObject({ ofOneUser: 64, key: 1, sendmsg: 109, fork: 11 });
      expect(taken["pipe"]).toBeLessThan(65_536);
      const unharmed = "inotify ok, pipe 65536, descriptor ok, fork ok";
      expect(await out(neighbour.id, `perl -e '${PROBE}'`)).toBe(unharmed);
      expect((await exec("perl", ["-e", PROBE])).stdout).toBe(unharmed);
    },
  );

  test("kills the largest process when memory is used up, and keeps the machine running", async () => {
    const { id } = await boot(withResources({ memoryBytes: 256 * MIB }));
    await driver.guest(id).startCommand({ id: "cmd_small", argv: ["sleep", "300"] });
    const eater = `perl -e '$x = "a" x (400 << 20)'`;
    expect((await execute(driver, id, `exec ${eater}`)).exit).toMatchObject({ code: null, signal: 9 });
    expect((await execute(driver, id, `${eater}; exit $?`)).exit.code).toBe(137);
    expect(await driver.guest(id).getCommand("cmd_small")).toMatchObject({ status: "running" });
    expect(await out(id, "cat /proc/1/oom_score_adj /proc/self/oom_score_adj")).toBe("0\n500\n");
  });

  test("reports a machine without PID 1 as dead", async () => {
    const { id } = await boot();
    const reason = exitOf(id);
    await cgroups.killAll(id);
    expect(await reason).toBe("failed");
    expect((await driver.list()).find((each) => each.id === id)).toMatchObject({ state: "dead" });
    await driver.remove(id);
  });

  test("raises and lowers the limits of a running machine", async () => {
    const { id } = await boot(withResources({ memoryBytes: 128 * MIB }));
    const resources = { vcpus: 1, maxProcesses: 200 };
    const eaten = "head -c 200M /dev/zero | tail -c 200M | wc -c";
    expect(await out(id, eaten)).toBe("0\n");
    await driver.setResources(id, { ...resources, memoryBytes: 512 * MIB });
    expect(await out(id, eaten)).toBe(`${200 * MIB}\n`);
    await driver.setResources(id, { ...resources, memoryBytes: 128 * MIB });
    expect(await out(id, eaten)).toBe("0\n");
  });

  test("reports ENOSPC inside on a full disk, also with many small files, and accepts writes after a deletion", async () => {
    const { id } = await boot(withResources({ diskBytes: 64 * MIB }));
    const filled = await execute(driver, id, "head -c 64M /dev/zero > within && cp within beyond");
    expect(filled.stderr.toString()).toContain("No space left on device");
    expect(
      await out(id, "rm within beyond; i=0; while echo > f$i; do i=$((i+1)); done 2>/dev/null; echo $i"),
    ).toMatch(/^[45]\d{3}\n$/);
    expect(await out(id, "rm f*; echo small > small; cat small")).toBe("small\n");
  });

  test.each([undefined, "nobody"])(
    "stops a fork bomb of user %s at maxProcesses, and keeps the machine running",
    async (user) => {
      const { id } = await boot(withResources({ maxProcesses: 40 }));
      const argv = ["/bin/sh", "-c", "i=0; while [ $i -lt 100 ]; do sleep 60 & i=$((i+1)); done"];
      const bomb = await execute(driver, id, { argv, ...(user === undefined ? {} : { user }) });
      expect(bomb.stderr.toString()).toContain("Cannot fork");
      expect((await driver.stats(id)).processes).toBeLessThan(80);
      expect((await execute(driver, id, { argv: ["pkill", "sleep"] })).exit.code).toBe(0);
      expect((await execute(driver, id, { argv: ["echo", "alive"] })).stdout.toString()).toBe("alive\n");
    },
  );

  test("stops a fork bomb of many users at the group's limit, and ends it with its machine", async () => {
    const { id } = await boot(withResources({ maxProcesses: 20 }));
    const perl = `for my $user (1000 .. 1100) { next if fork; $> = $< = $user; fork for 1 .. 5; sleep 60; exit } sleep 60`;
    await driver.guest(id).startCommand({ id: "cmd_bomb", argv: ["perl", "-e", perl] });
    await expect.poll(async () => (await driver.stats(id)).processes, { timeout: 20_000 }).toBe(256 + 4 * 20);
    await driver.remove(id);
    expect(await cgroups.list()).not.toContain(id);
  });

  test("keeps a machine's writes from other machines and from the image", async () => {
    const [one, other] = await Promise.all([boot(), boot()]);
    await execute(
      driver,
      one.id,
      "echo changed > /etc/issue; rm -rf /usr/share/doc /bin/ls; echo > /usr/new",
    );
    expect(await out(one.id, "cat /etc/issue; test -e /bin/ls || echo gone")).toBe("changed\ngone\n");
    expect(await out(other.id, "test -e /usr/new || ls -d /bin/ls; grep -c Debian /etc/issue")).toBe(
      "/bin/ls\n1\n",
    );
    const last = await boot();
    expect(await out(last.id, "test -e /usr/new || ls -d /bin/ls; grep -c Debian /etc/issue")).toBe(
      "/bin/ls\n1\n",
    );
  });

  test("lets a machine write to no file of the host", async () => {
    const { id } = await boot();
    for (const path of ["/.kontor/guest", "/.kontor/run/file", "/etc/resolv.conf", "/sys/kernel/profiling"]) {
      expect((await execute(driver, id, `echo > ${path}`)).stderr.toString()).toMatch(
        /Read-only file system/,
      );
    }
    // Only root may connect to the host, so no other user can pretend to be PID 1.
    const dial = `perl -MSocket -e 'socket S,1,1,0; connect(S, sockaddr_un("/.kontor/run/guest.sock")) or print $! + 0'`;
    expect((await execute(driver, id, { shell: dial, user: "nobody" })).stdout.toString()).toBe("13");
  });

  test("shows a volume's files with the same owners in machines of both kinds", async () => {
    const volume = { directory: join(subject.stateDir, "shared-volume"), sizeBytes: 256 * MIB, isNew: true };
    onTestFinished(() => rm(volume.directory, { recursive: true, force: true }));
    const first = await boot({ volume });
    await execute(driver, first.id, "echo kept > /persist/file; chown 1000 /persist/file");
    await driver.remove(first.id);
    const second = await boot({ volume, isolation: "gvisor" });
    expect(
      await out(second.id, "cat /persist/file; stat -c %u /persist/file; echo more >> /persist/file"),
    ).toBe("kept\n1000\n");
    await driver.remove(second.id);
    const third = await boot({ volume });
    expect(await out(third.id, "cat /persist/file; stat -c %u /persist/file")).toBe("kept\nmore\n1000\n");
  });

  test("starts the first machines of a new installation at the same time", async () => {
    const fresh = await make({ instance: 61 });
    onTestFinished(fresh.dispose);
    const specs = Array.from({ length: 6 }, () => machineSpec(fresh.image, { isolation: "native" }));
    await Promise.all(specs.map((spec) => fresh.driver.create(spec)));
    expect(await fresh.driver.list()).toHaveLength(6);
  });

  test("adopts the machines of a killed server", async () => {
    const victim = await make({ instance: 61 });
    onTestFinished(victim.dispose);
    await victim.driver.close();
    const specs = [1, 2].map(() => machineSpec(victim.image, { isolation: "native" }));
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

  describe.each<Isolation>(["native", "gvisor"])("images of layers, %s", (isolation) => {
    test("stacks layers, including their deletions", async () => {
      const image = await makeLayers(
        async (layer) => {
          await mkdir(join(layer, "srv/kept"), { recursive: true });
          await writeFile(join(layer, "srv/one"), "one\n");
          await writeFile(join(layer, "srv/kept/old"), "old\n");
          await exec("mknod", [join(layer, "gone"), "c", "0", "0"]);
          await mkdir(join(layer, "etc"));
          await exec("mknod", [join(layer, "etc/issue"), "c", "0", "0"]);
        },
        async (layer) => {
          await mkdir(join(layer, "srv/kept"), { recursive: true });
          const opaque = "import os, sys; os.setxattr(sys.argv[1], 'trusted.overlay.opaque', b'y')";
          await exec("python3", ["-c", opaque, join(layer, "srv/kept")]);
          await writeFile(join(layer, "srv/kept/new"), "new\n");
        },
        ...Array.from(
          { length: 40 },
          (_, index) => (layer: string) => writeFile(join(layer, `layer${index}`), ""),
        ),
      );
      const [one, two] = await Promise.all([boot({ image, isolation }), boot({ image, isolation })]);
      expect(
        await out(one.id, "cd /srv; cat one; ls kept; ls / | grep -c layer; ls /etc/issue 2>&1 | wc -l"),
      ).toBe("one\nnew\n40\n1\n");
      expect(await out(one.id, "echo changed > /srv/one; stat -c %a /tmp")).toBe("1777\n");
      expect(await out(two.id, "cat /srv/one")).toBe("one\n");
      await Promise.all([driver.remove(one.id), driver.remove(two.id)]);
      await driver.removeImage(image);
      expect(await readFile("/proc/self/mountinfo", "utf8")).not.toContain(image);
    });

    test("keeps mounts inside the image and at their paths, for any symlinks of the image", async () => {
      const trap = await mkdtemp(join(tmpdir(), "kontor-trap-"));
      onTestFinished(() => rm(trap, { recursive: true }));
      await chmod(trap, 0o777);
      const image = await makeLayers(async (layer) => {
        for (const name of [".kontor", "etc", "proc", "dev", "sys", "tmp", "persist"])
          await symlink(trap, join(layer, name));
      });
      const { id } = await boot({ image, isolation });
      expect(
        await out(id, "cat /etc/resolv.conf | head -1; test -d /proc/self && test -c /dev/null && echo real"),
      ).toBe("nameserver 10.0.0.1\nreal\n");
      expect(await readdir(trap)).toEqual([]);
    });

    test("does not follow a symlink in place of resolv.conf", async () => {
      const image = await makeLayers(async (layer) => {
        await mkdir(join(layer, "etc"));
        await symlink("../../../../../../tmp/resolv.conf", join(layer, "etc/resolv.conf"));
      });
      const { id } = await boot({ image, isolation });
      expect(await out(id, "head -1 /etc/resolv.conf; ls /tmp")).toBe("nameserver 10.0.0.1\n");
    });
  });

  test("boots no machine from an image with missing layers, and leaves nothing on the host", async () => {
    expect(
      await failureKind(
        driver.importImage({
          id: "missing",
          name: "x",
          layers: [join(subject.stateDir, "no-layer")],
          env: {},
          sizeBytes: 1,
        }),
      ),
    ).toBe("image_failed");
    const image = await makeLayers(async () => {});
    const directory = (
      await readFile(join(subject.options.imagesDirectory!, image, "image.json"), "utf8")
    ).match(/"(\/[^"]*kontor-layers-[^"]*)"/)![1]!;
    await rm(directory, { recursive: true });
    const spec = machineSpec(image, { isolation: "native" });
    expect(await failureKind(driver.create(spec))).toBe("failed");
    await driver.waitUntilIdle();
    expect(await listLeftovers(subject.stateDir, INSTANCE)).toEqual([]);
  });

  test("reaches the destinations of the machine's network mode, with the host's own protocols", async () => {
    const internet = await startInternet();
    onTestFinished(() => internet.close());
    const online = await make({ instance: 61, uplink: internet.uplink, dnsServers: [DNS_ADDRESS] });
    onTestFinished(online.dispose);
    const spec = machineSpec(online.image, { isolation: "native", network: "open" });
    await online.driver.create(spec);
    const get = async (host: string) =>
      (await execute(online.driver, spec.id, `curl -s -o /dev/null -m 5 -w '%{http_code}' http://${host}/`))
        .stdout;
    const answers = async () =>
      (await Promise.all([WEB_ADDRESS, "web.test", "10.66.0.1", METADATA_ADDRESS].map(get))).map(String);
    expect(await answers()).toEqual(["200", "200", "000", "000"]);
    for (const mode of ["off", "restricted"] as const) {
      await online.driver.setNetwork(spec.id, mode);
      expect(await answers(), mode).toEqual(["000", "000", "000", "000"]);
    }
    await online.driver.setNetwork(spec.id, "open");
    expect(await answers()).toEqual(["200", "200", "000", "000"]);
    const serves = `perl -MSocket -e 'socket S,2,1,0; bind S,sockaddr_in(80,INADDR_LOOPBACK); listen S,9; accept C,S; syswrite C,"served"'`;
    await online.driver.guest(spec.id).startCommand({ id: "cmd_serves", shell: serves });
    const tunnel = await vi.waitFor(() => online.driver.guest(spec.id).connect(80), { timeout: 10_000 });
    expect(await text(tunnel)).toBe("served");
  });

  test("leaves nothing on the host after the last machine is removed", async () => {
    const volume = { directory: join(subject.stateDir, "left-volume"), sizeBytes: 64 * MIB, isNew: true };
    onTestFinished(() => rm(volume.directory, { recursive: true, force: true }));
    const specs = await Promise.all([boot(), boot({ volume })]);
    await driver.freeze(specs[1]?.id ?? "");
    await Promise.all(specs.map(({ id }) => driver.remove(id)));
    await driver.waitUntilIdle();
    await expect.poll(() => listLeftovers(subject.stateDir, INSTANCE), { timeout: 10_000 }).toEqual([]);
  });
});
