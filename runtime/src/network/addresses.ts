/**
 * Every name and address of a machine's network derives from two numbers: the instance (a server on this
 * host) and the slot. So nothing is stored, and two servers on one host never use the same names or
 * addresses.
 */
import { RuntimeError } from "../driver.ts";

/**
 * Address of every machine as its own programs see it, in any slot: a checkpoint made in one slot restores in another.
 */
export const MACHINE_ADDRESS = "10.0.0.2";
export const MACHINE_PREFIX_LENGTH = 30;
export const GATEWAY_ADDRESS = "10.0.0.1";

export const MACHINE_MAC = "02:00:0a:00:00:02";
export const GATEWAY_MAC = "02:00:0a:00:00:01";

/** Largest instance number. 100.64.0.0/10 holds 64 blocks of /16, one for each instance. */
const MAX_INSTANCE = 63;
/** Largest slot number. Slots use the host numbers 1 to 65534 of the instance's /16; 65535 belongs to the gateway. */
export const MAX_SLOT = 65_533;

/** Names of an instance's objects on the host. */
export interface InstanceNames {
  /** nft: one table of family inet and one of family netdev. */
  table: string;
  /**
   * Prefix of every interface and namespace of the instance. The dash keeps `kv6-` from matching `kv61-0`.
   */
  interfacePrefix: string;
  /** Range of all outer addresses of the instance. */
  range: string;
  /** The host's address towards its machines, which reach it as 10.0.0.1. */
  gateway: string;
}

export interface SlotNames {
  /** Names of the host's end of the veth pair and of the namespace. At most 11 characters (IFNAMSIZ allows 15). */
  hostInterface: string;
  netnsPath: string;
  /** nft: chains of the instance's netdev table. */
  chains: { fromMachine: string; toMachine: string };
  /** Address of the machine for the host and its proxies, unique on this host. */
  address: string;
}

export function instanceNames(instance: number): InstanceNames {
  if (!Number.isInteger(instance) || instance < 0 || instance > MAX_INSTANCE) {
    throw new RuntimeError("failed", `instance must be a whole number from 0 to ${MAX_INSTANCE}`);
  }
  const block = `100.${64 + instance}`;
  return {
    table: `kontor${instance}`,
    interfacePrefix: `kv${instance}-`,
    range: `${block}.0.0/16`,
    gateway: `${block}.255.255`,
  };
}

export function slotNames(instance: number, slot: number): SlotNames {
  if (!Number.isInteger(slot) || slot < 0 || slot > MAX_SLOT) {
    throw new RuntimeError("failed", `slot must be a whole number from 0 to ${MAX_SLOT}`);
  }
  const host = slot + 1;
  const name = `kv${instance}-${slot}`;
  return {
    hostInterface: name,
    netnsPath: `/run/netns/${name}`,
    chains: { fromMachine: `from_${slot}`, toMachine: `to_${slot}` },
    address: `100.${64 + instance}.${host >> 8}.${host & 255}`,
  };
}

/** Returns the slot of an interface or namespace of this instance. Undefined for any other name. */
export function slotOfName(instance: number, name: string): number | undefined {
  const match = /^kv(\d+)-(\d+)$/.exec(name);
  if (match === null || Number(match[1]) !== instance) return undefined;
  return Number(match[2]);
}

/** Returns the slot of an outer address of this instance, the inverse of `slotNames`. */
export function slotOfAddress(instance: number, address: string): number | undefined {
  const [a, b, hi, lo] = address.split(".").map(Number);
  if (a !== 100 || b !== 64 + instance || hi === undefined || lo === undefined) return undefined;
  return hi * 256 + lo - 1;
}

/**
 * Addresses of the services that machines offer to each other: one half of RFC 2544's range. The internet
 * does not route this range, and open machines cannot reach it outside. `serviceAddress` takes an index from
 * 0 to 65533, which the caller assigns.
 */
export const SERVICE_RANGE = "198.19.0.0/16";

export function serviceAddress(index: number): string {
  if (!Number.isInteger(index) || index < 0 || index > MAX_SLOT) {
    throw new RuntimeError("failed", `the index of a service must be a whole number from 0 to ${MAX_SLOT}`);
  }
  const host = index + 1;
  return `198.19.${host >> 8}.${host & 255}`;
}

/** Formats an IPv4 address as a number for nft's raw expressions, `0x0a000002`. */
export function addressAsHex(address: string): string {
  return `0x${Buffer.from(address.split(".").map(Number)).toString("hex")}`;
}
