/**
 * The nft text of the machines' network, pure. An instance has two tables:
 *
 * - family `inet`: who may go where. A machine's mode is membership in a set, so changing it is one small transaction,
 *   and every packet is asked, not only a connection's first: what was open is shut at once.
 * - family `netdev`: two chains per slot (slot-rules.ts). What does not come from 10.0.0.2 never gets in, IPv6 included.
 *   One table for all slots: nft 1.0.6 pays 0.2 ms for every table there is, whatever it is asked (18 ms at 72).
 *
 * nft 1.0.6 pitfalls kept out of here: `rt`, `fwd`, `redirect`, `masquerade` are no names for tables or chains, and a
 * rule before `}` on one line needs a `;`.
 */
import type { NetworkMode } from "../driver.ts";
import { instanceNames, SERVICE_RANGE, slotNames, type InstanceNames } from "./addresses.ts";

/**
 * Where an open machine may not go: RFC 6890's special ranges, hosts' private ones, other machines (100.64.0.0/10) and
 * every cloud's metadata service (169.254.169.254). Addresses of the host itself are refused in the input chain,
 * whatever they are. TEST-NET-2 and 3 lead nowhere on the internet and are left out: tests play the internet with the
 * first, and networks that put a mirror in front of package archives give it an address of the second.
 */
export const REFUSED_RANGES = [
  "0.0.0.0/8",
  "10.0.0.0/8",
  "100.64.0.0/10",
  "127.0.0.0/8",
  "169.254.0.0/16",
  "172.16.0.0/12",
  "192.0.0.0/24",
  "192.0.2.0/24",
  "192.88.99.0/24",
  "192.168.0.0/16",
  "198.18.0.0/15",
  "224.0.0.0/3",
] as const;

/**
 * Connections to the outside and to other machines one machine may have at once. The host's connection table is one for all (262,144 entries
 * on a usual host) and a full one stops the host itself.
 */
const MAX_FLOWS = 4096;

/**
 * Limits of one machine towards the egress proxy, its resolver and the DNS forwarder, which run in the server's own
 * process: the kernel drops a flood before it costs the server anything. npm, the busiest of installers, opens some
 * fifty connections at once. An open machine may resolve more names: crawlers do, and nothing else slows them.
 */
const MAX_NEW_CONNECTIONS = "100/second burst 200 packets";
const MAX_QUESTIONS = "200/second burst 200 packets";
const MAX_OPEN_QUESTIONS = "500/second burst 1000 packets";

export interface InstanceRules {
  instance: number;
  /** The egress proxy's port as machines know it, at 10.0.0.1. */
  proxyPort: number;
  /** Where the DNS forwarder listens on the gateway address. */
  dnsPort: number;
  /** Where what serves restricted machines listens there; null: they reach nothing. */
  egress: { proxyPort: number; dnsPort: number } | null;
}

/**
 * Declares the instance's tables. `flush table` removes rules but keeps what the sets hold, so a server that comes back
 * puts its rules in place, in one transaction, around machines that run.
 *
 * Refusals are a reset, and `port-unreachable` for all but TCP: of ICMP's reasons gVisor's stack tells a program only
 * that one and the unreachable net or host (`admin-prohibited` left a resolver inside waiting for 8 s).
 *
 * A connection between machines bears the number of the group that whoever opened it was in (`groups`), and each of its
 * packets is asked three things: is that machine in this group still (`members`), is the address it was sent to served
 * in it, and by this very machine (`served`). So neither a slot's next machine nor a service's next one inherits a
 * packet of what was before, whatever the host's NAT remembers. What nobody serves is refused before it is routed,
 * whether the host has a way there or not.
 */
export function instanceTables({ instance, proxyPort, dnsPort, egress }: InstanceRules): string {
  const { table, interfacePrefix, gateway, range } = instanceNames(instance);
  const machines = `"${interfacePrefix}*"`;
  const restricted = egress === null ? NO_EGRESS : egressRules(machines, gateway, proxyPort, egress);
  return `add table inet ${table}
flush table inet ${table}
table inet ${table} {
	set uplink { type ifname; }
	map tenancy { type ipv4_addr : mark; }
	set open { type ipv4_addr . mark; }
	map groups { type ipv4_addr : mark; }
	set members { type ipv4_addr . mark; }
	set askers { type ipv4_addr; }
	map services { type mark . ipv4_addr . inet_service : ipv4_addr; }
	set served { type mark . ipv4_addr . inet_service . ipv4_addr; }
	set restricted { type ipv4_addr; }
	set denied { type ipv4_addr; size 65535; flags dynamic; }
	set flows { type ipv4_addr; size 65535; flags dynamic; }
	set knocks { type ipv4_addr; size 65535; flags dynamic; timeout 1m; }
	set questions { type ipv4_addr; size 65535; flags dynamic; timeout 1m; }
	set open_questions { type ipv4_addr; size 65535; flags dynamic; timeout 1m; }
	chain mark_tenancy {
		type filter hook prerouting priority mangle; policy accept;
		iifname ${machines} ct state new ip daddr != ${SERVICE_RANGE} ct mark set ip saddr map @tenancy
		iifname ${machines} ct state new ip daddr ${SERVICE_RANGE} ct mark set ip saddr map @groups
	}
	chain to_services {
		type nat hook prerouting priority dstnat; policy accept;
		iifname ${machines} ip daddr ${SERVICE_RANGE} dnat ip to ct mark . ip daddr . tcp dport map @services
	}
	chain unserved {
		type filter hook prerouting priority dstnat + 1; policy accept;
		iifname ${machines} ip daddr ${SERVICE_RANGE} jump refuse
	}
	chain to_forwarder {
		type nat hook prerouting priority dstnat; policy accept;
		iifname ${machines} ip daddr ${gateway} meta l4proto { tcp, udp } th dport 53 ip saddr . ct mark @open redirect to :${dnsPort}
${restricted.redirects}		iifname ${machines} ip daddr ${gateway} meta l4proto { tcp, udp } th dport 53 ip saddr @askers redirect to :${dnsPort}
	}
	chain input {
		type filter hook input priority filter; policy accept;
		iifname ${machines} jump machine_to_host
		iifname != "lo" ip daddr ${gateway} drop
	}
	chain machine_to_host {
		ct state established ct direction reply accept
		ct state related ct direction reply icmp type destination-unreachable accept
${restricted.accepts}		ip daddr ${gateway} meta l4proto { tcp, udp } th dport ${dnsPort} ct status dnat ip saddr . ct mark @open jump to_dns
		ip daddr ${gateway} meta l4proto { tcp, udp } th dport ${dnsPort} ct status dnat ip saddr @askers jump to_resolver
		jump refuse
	}
	chain to_proxy {
		ct state new update @knocks { ip saddr limit rate over ${MAX_NEW_CONNECTIONS} } jump refuse
		accept
	}
	chain to_resolver {
		update @questions { ip saddr limit rate over ${MAX_QUESTIONS} } drop
		accept
	}
	chain to_dns {
		update @open_questions { ip saddr limit rate over ${MAX_OPEN_QUESTIONS} } drop
		accept
	}
	chain forward {
		type filter hook forward priority filter; policy accept;
		iifname ${machines} oifname ${machines} jump between_machines
		iifname ${machines} jump machine_to_outside
		oifname ${machines} jump outside_to_machine
	}
	chain between_machines {
		ct direction original ip saddr . ct mark @members ct mark . ct original ip daddr . tcp dport . ip daddr @served jump connect
		ct direction reply ip daddr . ct mark @members ct mark . ct original ip daddr . tcp sport . ip saddr @served accept
		jump refuse
	}
	chain connect {
		ct state new add @flows { ip saddr ct count over ${MAX_FLOWS} } jump refuse
		accept
	}
	chain machine_to_outside {
		ip saddr . ct mark @open oifname @uplink ip daddr != { ${REFUSED_RANGES.join(", ")} } jump leave
		jump refuse
	}
	chain leave {
		ct state new add @flows { ip saddr ct count over ${MAX_FLOWS} } jump refuse
		tcp flags syn tcp option maxseg size set rt mtu
		accept
	}
	chain outside_to_machine {
		ct state established,related ct direction reply ip daddr . ct mark @open accept
		drop
	}
	chain refuse {
		update @denied { ip saddr counter }
		meta l4proto tcp reject with tcp reset
		reject with icmpx port-unreachable
	}
	chain translate {
		type nat hook postrouting priority srcnat; policy accept;
		ip saddr ${range} oifname @uplink masquerade
	}
}
add table netdev ${table}
`;
}

const NO_EGRESS = { redirects: "", accepts: "" };

/**
 * The ports machines know lead to those the listeners have: these are free ones, so a proxy of the host's own on the
 * usual port is in nobody's way and within no machine's reach.
 */
function egressRules(
  interfaces: string,
  gateway: string,
  proxyPort: number,
  egress: { proxyPort: number; dnsPort: number },
): { redirects: string; accepts: string } {
  const from = "ip saddr @restricted";
  const to = `ip daddr ${gateway}`;
  return {
    redirects: `		iifname ${interfaces} ${to} tcp dport ${proxyPort} ${from} redirect to :${egress.proxyPort}
		iifname ${interfaces} ${to} udp dport 53 ${from} redirect to :${egress.dnsPort}
`,
    accepts: `		${to} tcp dport ${egress.proxyPort} ct status dnat ${from} jump to_proxy
		${to} udp dport ${egress.dnsPort} ct status dnat ${from} jump to_resolver
`,
  };
}

/** Takes all of the instance away; made first, so that it works where there is nothing. */
export function removeInstanceTables(instance: number): string {
  const { table } = instanceNames(instance);
  return ["inet", "netdev"]
    .map((family) => `add table ${family} ${table}\ndelete table ${family} ${table}\n`)
    .join("");
}

/** Machines leave through this interface and no other; null: through none. */
export function setUplink(instance: number, uplink: string | null): string {
  const { table } = instanceNames(instance);
  const add = uplink === null ? "" : `add element inet ${table} uplink { "${uplink}" }\n`;
  return `flush set inet ${table} uplink\n${add}`;
}

/**
 * What a machine's membership in the sets says. The tenancy is a number drawn anew each time a slot becomes open; it
 * marks the connections made since. A peer that goes on sending to an earlier tenant's connection thus reaches nobody,
 * though the address is the same and the host's NAT still knows the way.
 */
export type Door = { mode: "off" } | { mode: "restricted" } | { mode: "open"; tenancy: number };

const ELEMENTS: Record<NetworkMode, (names: InstanceNames, address: string, door: Door) => string[]> = {
  off: () => [],
  restricted: ({ table }, address) => [`element inet ${table} restricted { ${address} }`],
  open: ({ table }, address, door) => {
    const tenancy = "tenancy" in door ? door.tenancy : 0;
    return [
      `element inet ${table} tenancy { ${address} : ${tenancy} }`,
      `element inet ${table} open { ${address} . ${tenancy} }`,
    ];
  },
};

/** One transaction: out of one mode and into another. Empty where both are off. */
export function changeDoor(instance: number, slot: number, from: Door, to: Door): string {
  const names = instanceNames(instance);
  const { address } = slotNames(instance, slot);
  return [
    // Added first: what somebody else has deleted is no reason to fail.
    ...ELEMENTS[from.mode](names, address, from).map((element) => `add ${element}\ndelete ${element}\n`),
    ...ELEMENTS[to.mode](names, address, to).map((element) => `add ${element}\n`),
  ].join("");
}

/** The count of what was refused begins anew. Added first: nft 1.0.6 has no `destroy`, `delete` wants it there. */
export function resetDenied(instance: number, slot: number): string {
  const { table } = instanceNames(instance);
  const { address } = slotNames(instance, slot);
  const element = `element inet ${table} denied { ${address} }`;
  return `add ${element}\ndelete ${element}\n`;
}
