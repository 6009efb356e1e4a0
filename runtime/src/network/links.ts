/** The `ip -batch` text that makes, configures and removes one slot's namespace and veth pair. Pure. */
import {
  GATEWAY_ADDRESS,
  GATEWAY_MAC,
  instanceNames,
  MACHINE_ADDRESS,
  MACHINE_MAC,
  MACHINE_PREFIX_LENGTH,
  slotNames,
} from "./addresses.ts";

/**
 * Makes the namespace and the veth pair. The machine's end stays down until the slot's nft table exists. The neighbour
 * is fixed, so no machine can claim another machine's address, and no packet waits for address resolution.
 */
export function makeSlot(instance: number, slot: number): string {
  const { gateway } = instanceNames(instance);
  const { hostInterface, address } = slotNames(instance, slot);
  return `netns add ${hostInterface}
link add ${hostInterface} address ${GATEWAY_MAC} type veth peer name eth0 address ${MACHINE_MAC} netns ${hostInterface}
addr add ${gateway}/32 dev ${hostInterface} scope link
link set ${hostInterface} up
neigh add ${address} lladdr ${MACHINE_MAC} nud permanent dev ${hostInterface}
route add ${address}/32 dev ${hostInterface} src ${gateway}
`;
}

/**
 * Returns the text for `ip` inside the namespace. runsc removes the address from eth0, so this text is run before every
 * start and restore.
 */
export function addressSlot(): string {
  return `link set lo up
addr replace ${MACHINE_ADDRESS}/${MACHINE_PREFIX_LENGTH} dev eth0
link set eth0 up
route replace default via ${GATEWAY_ADDRESS} dev eth0
`;
}

/** Run this with `ip -force`, which continues if the link or the namespace no longer exists. */
export function removeSlot(instance: number, slot: number): string {
  const { hostInterface } = slotNames(instance, slot);
  return `link del ${hostInterface}\nnetns del ${hostInterface}\n`;
}

/**
 * Adds or deletes the gateway address, which must exist before the first machine, for the servers that listen on it.
 * Scope host keeps the kernel from using it as a source address towards other hosts.
 */
export function gatewayOnLoopback(instance: number, verb: "replace" | "del"): string {
  return `addr ${verb} ${instanceNames(instance).gateway}/32 dev lo scope host\n`;
}
