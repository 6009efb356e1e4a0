/**
 * Machine request of one instance: native, without outbound network, and in the workspace's private network if it is an
 * add-on.
 */
import type { MachineRequest } from "#machines/placement/placement.ts";
import { type PrivateNetwork, serviceAddress } from "#machines/private-network.ts";
import type { Extent } from "../sizes.ts";
import type { AddonView } from "../store.ts";
import { privateHost } from "../access/urls.ts";

/** A database runs a process for each connection, and threads count too. */
const maxProcesses = 512;
/** Root disk of a machine with a volume, for settings and files in /tmp. */
const rootBytes = 1024 ** 3;

export interface MachinePlan {
  ownerId: string;
  /** Id of the kind's image on this host. */
  image: string;
  hostname: string;
  extent: Extent;
  /** Absent for an instance without a volume, whose files are removed with the machine. */
  volume?: { id: string; region: string; isNew: boolean };
  /** Absent for an instance that no other machine may reach. */
  privateNetwork?: PrivateNetwork;
}

/** Private network address and name of the add-on, which stay when its machine is replaced. */
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
