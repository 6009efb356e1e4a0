/** The machine of one instance: native, with no way out, and with the workspace's private network where it serves. */
import type { MachineRequest } from "#machines/placement/placement.ts";
import { type PrivateNetwork, serviceAddress } from "#machines/private-network.ts";
import type { Extent } from "../sizes.ts";
import type { AddonView } from "../store.ts";
import { privateHost } from "../access/urls.ts";

/** A database has a process for each connection, and threads count. */
const maxProcesses = 512;
/** What a machine with a volume writes beside it: settings, and what programs leave in /tmp. */
const rootBytes = 1024 ** 3;

export interface MachinePlan {
  ownerId: string;
  /** Id of its kind's image on this host. */
  image: string;
  hostname: string;
  extent: Extent;
  /** Absent where its files go with the machine. */
  volume?: { id: string; region: string; isNew: boolean };
  /** Absent where nobody is to reach it. */
  privateNetwork?: PrivateNetwork;
}

/** Where the workspace's machines find it: a name and an address that outlive its machine. */
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
