/** Drivers for host tests, and checks for their leftovers. */
import { execFile } from "node:child_process";
import { mkdtemp, readFile, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { Cgroups } from "../../cgroup/cgroups.ts";
import { TEST_IMAGES, testImage } from "../../rootfs/testing/image.ts";
import { LinuxDriver, type LinuxOptions } from "../driver.ts";

const exec = promisify(execFile);
export const INSTANCE = 62;
const repository = join(import.meta.dirname, "..", "..", "..", "..");

/** Makes a driver with its own directory and instance number, for everything that it makes. */
export async function makeDriver(change: Partial<LinuxOptions> = {}) {
  await exec("make", ["-C", join(repository, "guest")]);
  await exec("make", ["-C", join(repository, "runtime", "shim")]);
  const { image, rootfs } = await testImage();
  const stateDir = await mkdtemp(join(tmpdir(), "kontor-linux-"));
  const options: LinuxOptions = {
    stateDir,
    imagesDirectory: TEST_IMAGES,
    instance: INSTANCE,
    // No interface has this name: no test of this file uses the uplink.
    uplink: "kontor-none",
    dnsServers: [],
    proxyPort: 3128,
    guestBinary: join(repository, "guest", "build", "kontor-guest"),
    shimBinary: join(repository, "runtime", "shim", "build", "kontor-shim"),
    runsc: "runsc",
    runc: "runc",
    platform: "systrap",
    log: () => {},
    ...change,
  };
  const open = async () => {
    const driver = new LinuxDriver(options);
    await driver.open();
    return driver;
  };
  let driver = await open();
  return {
    driver,
    image: image.id,
    layers: [rootfs],
    stateDir,
    options,
    again: async () => (driver = await open()),
    dispose: async () => {
      for (const { id } of await driver.list()) await driver.remove(id);
      await driver.close({ removeAll: true });
      await rm(stateDir, { recursive: true });
    },
  };
}

/**
 * Lists the processes, mounts, loop devices, control groups and files of machines. Idle namespaces are left
 * out, because the network keeps them.
 */
export async function listLeftovers(stateDir: string, instance: number): Promise<string[]> {
  const [processes, mounts, loops, groups, files, sockets] = await Promise.all([
    exec("ps", ["-eo", "args"]),
    readFile("/proc/self/mountinfo", "utf8"),
    exec("losetup", ["--list", "--noheadings", "--output", "BACK-FILE"]),
    Cgroups.detect(`kontor${instance}`).then((cgroups) => cgroups.list()),
    readdir(join(stateDir, "machines")).catch(() => []),
    readdir(`/run/kontor/${instance}`),
  ]);
  const lines = [processes.stdout, mounts, loops.stdout].join("\n").split("\n");
  const ours = lines.filter((line) => line.includes(stateDir) || line.includes(`/run/kontor/${instance}/`));
  return [...ours, ...groups, ...files, ...sockets];
}
