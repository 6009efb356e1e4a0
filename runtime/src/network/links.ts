/** The `ip -batch` text that makes, addresses and removes one slot's namespace and veth pair, pure. */
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
 * The namespace and the host's end of the pair. The machine's end stays down until the slot's nft table stands. The
 * neighbour is fixed: no machine can claim another's address, and none is waited for.
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

/** To be run inside the namespace: runsc takes the address off eth0, so this precedes every start and restore. */
export function addressSlot(): string {
  return `link set lo up
addr replace ${MACHINE_ADDRESS}/${MACHINE_PREFIX_LENGTH} dev eth0
link set eth0 up
route replace default via ${GATEWAY_ADDRESS} dev eth0
`;
}

/** With `ip -force`: either may be gone already. */
export function removeSlot(instance: number, slot: number): string {
  const { hostInterface } = slotNames(instance, slot);
  return `link del ${hostInterface}\nnetns del ${hostInterface}\n`;
}

/**
 * The gateway address has to be there before the first machine, for what listens on it. Scope host keeps the kernel
 * from taking it as a source towards anywhere else.
 */
export function gatewayOnLoopback(instance: number, verb: "replace" | "del"): string {
  return `addr ${verb} ${instanceNames(instance).gateway}/32 dev lo scope host\n`;
}
