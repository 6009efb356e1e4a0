/**
 * The nft text of one slot. Pure. Two chains on the host's end of its veth pair translate addresses without state,
 * between the address that every machine has inside and the machine's unique outer address.
 */
import { addressAsHex, GATEWAY_ADDRESS, instanceNames, MACHINE_ADDRESS, slotNames } from "./addresses.ts";

/**
 * Returns the chains that rewrite the addresses of one slot. ARP is rewritten too, so that the kernel's source check
 * (rp_filter, strict on many hosts) finds a route for the address. ICMP errors quote the header of the original packet
 * with its outer addresses. The guest would not recognise its own packet, and would time out. So the quote is
 * corrected, and the difference goes into the error's unused word (RFC 792; bytes 4 and 5), which keeps the checksum
 * valid.
 */
export function slotChains(instance: number, slot: number): string {
  const { table, gateway } = instanceNames(instance);
  const { hostInterface, chains, address } = slotNames(instance, slot);
  const outer = addressAsHex(address);
  const inner = addressAsHex(MACHINE_ADDRESS);
  const quoteOfMachine = balance([address], [MACHINE_ADDRESS]);
  const quoteOfBoth = balance([address, gateway], [MACHINE_ADDRESS, GATEWAY_ADDRESS]);
  const quote = `icmp type { destination-unreachable, time-exceeded } @th,32,16 0 @th,160,32 ${outer}`;
  return `table netdev ${table} {
	chain ${chains.fromMachine} {
		type filter hook ingress device "${hostInterface}" priority 0; policy drop;
		arp operation request arp saddr ip ${MACHINE_ADDRESS} arp daddr ip ${GATEWAY_ADDRESS} arp saddr ip set ${address} arp daddr ip set ${gateway} accept
		ip saddr ${MACHINE_ADDRESS} ip daddr ${GATEWAY_ADDRESS} ip saddr set ${address} ip daddr set ${gateway} accept
		ip saddr ${MACHINE_ADDRESS} ip saddr set ${address} accept
	}
	chain ${chains.toMachine} {
		type filter hook egress device "${hostInterface}" priority 0; policy accept;
		${quote} @th,192,32 ${addressAsHex(gateway)} @th,192,32 set ${addressAsHex(GATEWAY_ADDRESS)} @th,160,32 set ${inner} @th,32,16 set ${quoteOfBoth}
		${quote} @th,160,32 set ${inner} @th,32,16 set ${quoteOfMachine}
		ip saddr ${gateway} ip saddr set ${GATEWAY_ADDRESS}
		ip daddr ${address} ip daddr set ${MACHINE_ADDRESS}
		arp saddr ip ${gateway} arp saddr ip set ${GATEWAY_ADDRESS} arp daddr ip set ${MACHINE_ADDRESS}
	}
}
`;
}

/**
 * Removes the slot's chains. The text first adds them, so that a missing chain causes no error. The kernel removes them
 * together with the interface.
 */
export function removeSlotChains(instance: number, slot: number): string {
  const { table } = instanceNames(instance);
  return Object.values(slotNames(instance, slot).chains)
    .map((chain) =>
      ["add", "flush", "delete"].map((verb) => `${verb} chain netdev ${table} ${chain}\n`).join(""),
    )
    .join("");
}

/** Returns the value to add so that the one's-complement sum (RFC 1071) of the addresses stays the same. */
function balance(before: string[], after: string[]): string {
  const sum = (addresses: string[]) =>
    addresses
      .flatMap((address) => {
        const bytes = Buffer.from(address.split(".").map(Number));
        return [bytes.readUInt16BE(0), bytes.readUInt16BE(2)];
      })
      .reduce((total, word) => total + word, 0);
  // Mod 0xffff is one's-complement addition; the second % keeps a negative difference positive.
  const difference = (((sum(before) - sum(after)) % 0xffff) + 0xffff) % 0xffff;
  return `0x${difference.toString(16)}`;
}
