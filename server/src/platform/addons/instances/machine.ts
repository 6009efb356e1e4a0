/**
 * Machine request of an instance: native, and without outbound network. The machine of an add-on is in the workspace's
 * private network.
 */
import type { MachineRequest } from "#machines/placement/placement.ts";
import { type PrivateNetwork, serviceAddress } from "#machines/private-network.ts";
import type { Extent } from "../sizes.ts";
import type { AddonView } from "../store.ts";
import { privateHost } from "../access/urls.ts";

/** Limit of processes and threads. A database runs a process for each connection, and threads count too. */
const maxProcesses = 512;
/** Bytes of the root disk of a machine with a volume, for settings and files in /tmp. */
const rootBytes = 1024 ** 3;

export interface MachinePlan {
  ownerId: string;
  /** Id of the engine's image on this host. */
  image: string;
  hostname: string;
  extent: Extent;
  /** Volume for the database files. An instance without a volume loses its files with the machine. */
  volume?: { id: string; region: string; isNew: boolean };
  /** Private network of the instance; absent if no other machine may reach the instance. */
  privateNetwork?: PrivateNetwork;
}

/**
 * Returns the add-on's address and name in the private network. Address and name stay when the add-on's machine is
 * replaced.
 */
export function networkOf(
  row: Pick<AddonView, "workspace_id" | "private_index" | "name" | "project_name">,
  port: number,
): PrivateNetwork {
  return {
    group: row.workspace_id,
    serves: { name: privateHost(row), address: serviceAddress(row.private_index), ports: [port] },
  };
}

export function requestOf(plan: MachinePlan): MachineRequest {
  const { ownerId, image, hostname, extent, volume, privateNetwork } = plan;
  const { vcpus, memoryBytes, diskBytes } = extent;
  return {
    ownerKind: "addon",
    ownerId,
    shape: {
      poolKey: "",
      template: image,
      resources: {
        vcpus,
        memoryBytes,
        diskBytes: volume ? rootBytes : diskBytes + rootBytes,
        maxProcesses,
      },
    },
    image: { id: image },
    isolation: "native",
    network: "off",
    hostname,
    env: {},
    ...(privateNetwork ? { privateNetwork } : {}),
    ...(volume ? { volume: { ...volume, sizeBytes: diskBytes } } : {}),
  };
}
