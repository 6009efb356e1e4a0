import { expect, test } from "vitest";
import { removeSlotChains, slotChains } from "./slot-rules.ts";

test("accepts only IPv4 and ARP of 10.0.0.2, under the slot's own address", () => {
  expect(slotChains(61, 0)).toBe(`table netdev kontor61 {
	chain from_0 {
		type filter hook ingress device "kv61-0" priority 0; policy drop;
		arp operation request arp saddr ip 10.0.0.2 arp daddr ip 10.0.0.1 arp saddr ip set 100.125.0.1 arp daddr ip set 100.125.255.255 accept
		ip saddr 10.0.0.2 ip daddr 10.0.0.1 ip saddr set 100.125.0.1 ip daddr set 100.125.255.255 accept
		ip saddr 10.0.0.2 ip saddr set 100.125.0.1 accept
	}
	chain to_0 {
		type filter hook egress device "kv61-0" priority 0; policy accept;
		icmp type { destination-unreachable, time-exceeded } @th,32,16 0 @th,160,32 0x647d0001 @th,192,32 0x647dffff @th,192,32 set 0x0a000001 @th,160,32 set 0x0a000002 @th,32,16 set 0xb4f8
		icmp type { destination-unreachable, time-exceeded } @th,32,16 0 @th,160,32 0x647d0001 @th,160,32 set 0x0a000002 @th,32,16 set 0x5a7c
		ip saddr 100.125.255.255 ip saddr set 10.0.0.1
		ip daddr 100.125.0.1 ip daddr set 10.0.0.2
		arp saddr ip 100.125.255.255 arp saddr ip set 10.0.0.1 arp daddr ip set 10.0.0.2
	}
}
`);
});

test("adds chains before their deletion, so that a second deletion causes no error", () => {
  expect(removeSlotChains(3, 9)).toBe(
    "add chain netdev kontor3 from_9\nflush chain netdev kontor3 from_9\ndelete chain netdev kontor3 from_9\n" +
      "add chain netdev kontor3 to_9\nflush chain netdev kontor3 to_9\ndelete chain netdev kontor3 to_9\n",
  );
});
