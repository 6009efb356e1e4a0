import type { ColumnType, Generated } from "kysely";
import type { PrivateNetwork } from "@kontor/runtime/driver.ts";
import type { HostVolume } from "./host/host.ts";

/** Columns as they are stored; migrations/0003_machines.sql and 0020_addons.sql explain them. */
interface RegionsTable {
  code: string;
  name: string;
}

interface HostsTable {
  id: string;
  region: string;
  address: string;
  state: "joining" | "ready" | "draining" | "lost" | "retired";
  epoch: Generated<number>;
  lease_until: Date;
  cpu_class: string;
  runtime_builds: string[];
  vcpus: number;
  memory_bytes: number;
  disk_bytes: number;
  labels: Generated<Record<string, unknown>>;
}

export interface HostImagesTable {
  host_id: string;
  name: string;
  state: "preparing" | "ready" | "failed";
  image_id: string | null;
  contents: ColumnType<Record<string, string>, string | undefined, string>;
  substituted: Generated<boolean>;
  size_bytes: number | null;
  error: string | null;
  updated_at: Generated<Date>;
}

export interface MachinesTable {
  id: string;
  host_id: string;
  host_epoch: number;
  generation: Generated<number>;
  pool_key: string | null;
  image_id: string;
  owner_kind: "pool" | "sandbox" | "build" | "app" | "function" | "addon";
  owner_id: string | null;
  isolation: Generated<"gvisor" | "native">;
  vcpus: number;
  memory_bytes: number;
  disk_bytes: number;
  max_processes: number;
  network: "off" | "restricted" | "open";
  hostname: string;
  env_sealed: Buffer | null;
  desired: "running" | "frozen" | "removed";
  observed: "starting" | "ready" | "dead";
  takeover: Generated<"none" | "auto">;
  created_at: Generated<Date>;
  claimed_at: Date | null;
  snapshot_id: ColumnType<string | null, string | null | undefined>;
  volume: VolumeColumn;
  private_group: ColumnType<string | null, string | null | undefined, never>;
  serves: ColumnType<PrivateNetwork["serves"] | null, string | null | undefined, never>;
}

type VolumeColumn = ColumnType<HostVolume | null, string | null | undefined, never>;

/** See migrations/0008_snapshots.sql and 0014_forks.sql. */
export interface SnapshotsTable {
  id: string;
  owner_kind: "sandbox" | "named" | "function";
  owner_id: string;
  machine: string;
  generation: number;
  host_id: string | null;
  blob_key: string | null;
  sha256: string;
  bytes: number;
  cpu_class: string;
  runtime_build: string;
  image_id: string;
  vcpus: number;
  memory_bytes: number;
  disk_bytes: number;
  max_processes: number;
  network: "off" | "restricted" | "open";
  hostname: string;
  env_sealed: Buffer | null;
  volume: VolumeColumn;
  private_group: ColumnType<string | null, string | null | undefined, never>;
  reason: "explicit" | "deadline";
  stored_at: Date;
  expires_at: Date | null;
  damaged: ColumnType<boolean, boolean | undefined>;
}

export interface MachinesTables {
  regions: RegionsTable;
  hosts: HostsTable;
  host_images: HostImagesTable;
  machines: MachinesTable;
  snapshots: SnapshotsTable;
}
