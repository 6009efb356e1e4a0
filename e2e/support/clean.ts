/** Takes a server's things off this host, whatever state it was left in: machines, network, groups, database. */
import { rm } from "node:fs/promises";
import { Cgroups } from "@kontor/runtime/cgroup/cgroups.ts";
import { run } from "@kontor/runtime/exec.ts";
import { HostNetwork } from "@kontor/runtime/network/network.ts";
import { UndoStack } from "@kontor/runtime/undo.ts";
import { stopEmbedded } from "../../server/src/db/embedded/ensure-embedded.ts";
import { instanceOf, mountsBelow } from "./host-state.ts";

/** The server must have ended. Every step is tried; the first failure is thrown in the end. */
export async function removeHostTraces(dataDir: string): Promise<void> {
  const instance = instanceOf(dataDir);
  // Run backwards: machines first, for they hold the mounts and the network.
  const steps = new UndoStack();
  if (instance !== undefined) {
    steps.add("claim", () => rm(`/run/kontor/instances/${instance}`, { force: true }));
    steps.add("run directory", () => rm(`/run/kontor/${instance}`, { recursive: true, force: true }));
    steps.add("network", () => removeNetwork(instance));
  }
  steps.add("mounts", async () => {
    // A native machine's root stands on its disk.
    const roots = instance === undefined ? [] : mountsBelow(`/run/kontor/${instance}`);
    for (const path of [...roots, ...mountsBelow(dataDir)]) await run(["umount", path]);
  });
  if (instance !== undefined) steps.add("machines", () => removeGroups(instance));
  steps.add("database", () => stopEmbedded(dataDir));
  const [failure] = await steps.unwind();
  if (failure) throw failure.error;
}

async function removeGroups(instance: number): Promise<void> {
  const cgroups = await Cgroups.detect(`kontor${instance}`);
  await cgroups.open();
  for (const name of await cgroups.list()) {
    await cgroups.killAll(name);
    await cgroups.remove(name);
  }
  await cgroups.removeParent();
}

async function removeNetwork(instance: number): Promise<void> {
  const network = new HostNetwork({ instance, uplink: null, dnsServers: null, proxyPort: 3128 });
  await network.open();
  await network.close({ removeAll: true });
}
