/**
 * A native machine from its creation to the output of its first command, through the driver alone. Each deployment or
 * wake of an app starts its machine in the same way.
 *
 * The machine alternates with a bare `runc run` of the same root filesystem, which has no disk, users or network of its
 * own, and with `podman run` under runc.
 */
import { mkdirSync, mkdtempSync, readFileSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { MachineSpec } from "@kontor/runtime/driver.ts";
import { run as runProgram } from "@kontor/runtime/exec.ts";
import { LinuxDriver } from "@kontor/runtime/linux/driver.ts";
import type { BenchContext } from "../support/contract.ts";
import { imagesOf, rootfsOf } from "../support/images.ts";
import { waitForIdleMachines } from "../support/machines.ts";
import { percentile, measureTime } from "../support/measure.ts";
import { Podman } from "../rivals/podman.ts";

export const name = "native";

const rounds = 50;
const rivalEvery = 5;
/** Instance number that no server has: servers get the lowest free numbers. */
const instance = 59;
const mib = 1024 * 1024;
const root = join(import.meta.dirname, "../..");

export async function run(context: BenchContext): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), "kontor-bench-native-"));
  const rootfs = rootfsOf(context.dataDirectory, "debian-12");
  const driver = openDriver(folder, imagesOf(context.dataDirectory));
  const podman = await Podman.open(rootfs, "runc");
  const samples: Record<"ours" | "runc" | "podman", number[]> = { ours: [], runc: [], podman: [] };
  try {
    await driver.open();
    const runc = bareRunc(join(folder, "runc"), rootfs);
    await waitForIdleMachines(context);
    // The first three rounds fill caches.
    for (let round = -3; round < rounds; round += 1) {
      context.progress(`${round} of ${rounds}`, Math.max(0, round) / rounds);
      const ours = await oneMachine(driver, rootfs);
      const isRivals = round % rivalEvery === 0;
      const others = isRivals
        ? { runc: await runc(), podman: await podman?.runAndExec("bridge", "echo ready") }
        : {};
      if (round < 0) continue;
      samples.ours.push(ours);
      if (others.runc !== undefined) samples.runc.push(others.runc);
      if (others.podman !== undefined) samples.podman.push(others.podman);
    }
  } finally {
    await podman?.close();
    await driver.close({ removeAll: true });
    rmSync(folder, { recursive: true, force: true });
  }
  const what = {
    ours: "native machine, create → first output, cold",
    runc: "runc run, the same output",
    podman: "podman run --runtime runc + exec, network bridge",
  };
  for (const who of ["ours", "runc", "podman"] as const) {
    if (samples[who].length === 0) continue;
    context.report({
      what: `${what[who]}, p50`,
      value: percentile(samples[who], 50),
      unit: "ms",
      samples: samples[who],
      ...(who === "ours" ? { bar: { atMost: 150 } } : {}),
      note: `n=${samples[who].length}, one at a time, in turns`,
    });
  }
}

function openDriver(stateDir: string, imagesDirectory: string): LinuxDriver {
  return new LinuxDriver({
    stateDir,
    imagesDirectory,
    instance,
    uplink: null,
    dnsServers: null,
    proxyPort: 3128,
    guestBinary: join(root, "guest/build/kontor-guest"),
    shimBinary: join(root, "runtime/shim/build/kontor-shim"),
    runsc: "runsc",
    runc: "runc",
    platform: "systrap",
    log: () => {},
  });
}

let count = 0;

async function oneMachine(driver: LinuxDriver, rootfs: string): Promise<number> {
  const spec: MachineSpec = {
    id: `m${String((count += 1)).padStart(19, "0")}`,
    generation: 1,
    image: rootfs.split("/").at(-2) ?? "",
    isolation: "native",
    resources: { vcpus: 2, memoryBytes: 512 * mib, diskBytes: 10_240 * mib, maxProcesses: 256 },
    network: "open",
    hostname: "bench",
    env: {},
  };
  const { ms } = await measureTime(async () => {
    await driver.create(spec);
    const process = await driver.guest(spec.id).spawn({ shell: "echo ready", onDisconnect: "kill" });
    for await (const { data } of process.output) if (data.length === 0) throw new Error("it said nothing");
    await process.exit;
  });
  await driver.remove(spec.id);
  await driver.waitUntilIdle();
  return ms;
}

/**
 * Returns a function that measures the milliseconds of one `runc run` to its end. The run uses the configuration of
 * `runc spec`, as far as that works on all hosts.
 */
function bareRunc(folder: string, rootfs: string): () => Promise<number> {
  const bundle = join(folder, "bundle");
  mkdirSync(bundle, { recursive: true });
  return async () => {
    rmSync(join(bundle, "config.json"), { force: true });
    await runProgram(["runc", "spec", "--bundle", bundle]);
    const spec = JSON.parse(readFileSync(join(bundle, "config.json"), "utf8")) as {
      process: Record<string, unknown>;
      root: Record<string, unknown>;
    };
    Object.assign(spec.process, { terminal: false, args: ["/bin/bash", "-c", "echo ready"], rlimits: [] });
    Object.assign(spec.root, { path: realpathSync(rootfs), readonly: true });
    writeFileSync(join(bundle, "config.json"), JSON.stringify(spec));
    const id = `kontor-bench-${process.pid}-${(count += 1)}`;
    const { ms } = await measureTime(() =>
      runProgram(["runc", "--root", join(folder, "state"), "run", "--bundle", bundle, id]),
    );
    return ms;
  };
}
