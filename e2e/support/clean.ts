/** Removes all traces of a server from this host, in any state: machines, network, groups, database. */
import { rm } from "node:fs/promises";
import { Cgroups } from "@kontor/runtime/cgroup/cgroups.ts";
import { run } from "@kontor/runtime/exec.ts";
import { HostNetwork } from "@kontor/runtime/network/network.ts";
import { UndoStack } from "@kontor/runtime/undo.ts";
import { stopEmbedded } from "../../server/src/db/embedded/ensure-embedded.ts";
import { instanceOf, mountsBelow } from "./host-state.ts";

/** Removes the traces of a server, which must have ended. Every step runs; the first failure is thrown at the end. */
export async function removeHostTraces(dataDir: string): Promise<void> {
  const instance = instanceOf(dataDir);
  // The steps run in reverse order: machines first, because they use the mounts and the network.
  const steps = new UndoStack();
  if (instance !== undefined) {
    steps.add("claim", () => rm(`/run/kontor/instances/${instance}`, { force: true }));
    steps.add("run directory", () => rm(`/run/kontor/${instance}`, { recursive: true, force: true }));
    steps.add("network", () => removeNetwork(instance));
  }
  steps.add("mounts", async () => {
    // The root of a native machine is mounted from its disk.
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
