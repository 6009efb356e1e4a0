/** The machine of one instance: native, with no way out, and with the workspace's private network where it serves. */
import type { MachineRequest } from "#machines/placement.ts";
import type { Extent } from "./sizes.ts";

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
}

export function requestOf({ ownerId, image, hostname, extent, volume }: MachinePlan): MachineRequest {
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
    ...(volume ? { volume: { ...volume, sizeBytes: diskBytes } } : {}),
  };
}
