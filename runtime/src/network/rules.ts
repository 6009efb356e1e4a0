/**
 * The nft text of the machines' network. Pure. An instance has two tables:
 *
 * - family `inet`: decides which destinations a machine reaches. A machine's mode is membership in a set, so
 *   a change is one small transaction. Every packet is checked, not only a connection's first, so open
 *   connections end at once.
 * - family `netdev`: two chains per slot (slot-rules.ts). Packets from another source than 10.0.0.2 never
 *   enter, IPv6 included. All slots share one table: nft 1.0.6 needs 0.2 ms for every existing table, at any
 *   command (18 ms at 72).
 *
 * nft 1.0.6 pitfalls avoided here: `rt`, `fwd`, `redirect`, `masquerade` cannot name tables or chains, and a
 * rule before `}` on one line needs a `;`.
 */
import type { NetworkMode } from "../driver.ts";
import { instanceNames, SERVICE_RANGE, slotNames, type InstanceNames } from "./addresses.ts";

/**
 * Destinations closed to open machines: RFC 6890's special ranges, private ranges of hosts, other machines
 * (100.64.0.0/10) and the metadata service of every cloud (169.254.169.254). The input chain refuses the
 * host's own addresses, whatever they are. TEST-NET-2 and 3 are left out, because they lead nowhere on the
 * internet. Tests use the first as their internet, and networks with a mirror of package archives give it an
 * address of the second.
 */
const REFUSED_RANGES = [
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
 * Limit of one machine's concurrent connections to the outside and to other machines. The host has one connection table
 * for all machines (262,144 entries on a usual host), and a full table stops the host itself.
 */
const MAX_FLOWS = 4096;

/**
 * Rate limits of one machine for new connections to the egress proxy, and for packets to the proxy's resolver
 * and to the DNS forwarder (`MAX_OPEN_QUESTIONS`). All three run in the server's process, so the kernel stops a
 * flood before it reaches the server. npm, the busiest installer, opens about fifty connections at once. An
 * open machine may resolve more names, because crawlers do, and nothing else slows them.
 */
const MAX_NEW_CONNECTIONS = "100/second burst 200 packets";
const MAX_QUESTIONS = "200/second burst 200 packets";
const MAX_OPEN_QUESTIONS = "500/second burst 1000 packets";

export interface InstanceRules {
  instance: number;
  /** Port of the egress proxy for machines, at 10.0.0.1. */
  proxyPort: number;
  /** Port of the DNS forwarder on the gateway address. */
  dnsPort: number;
  /**
   * Ports of the services for restricted machines, on the gateway address. Null: these machines reach
   * nothing.
   */
  egress: { proxyPort: number; dnsPort: number } | null;
}

/**
 * Declares the instance's tables. `flush table` removes rules but keeps the sets' elements, so a restarted
 * server replaces its rules in one transaction, around running machines.
 *
 * A refusal is a reset, or `port-unreachable` for protocols other than TCP. Among the ICMP reasons, gVisor's stack reports
 * only this one and the unreachable net or host to a program (`admin-prohibited` left a resolver inside waiting for 8
 * s).
 *
 * A connection between machines is marked with the number of the client's group (`groups`). Each of its
 * packets is checked three times. Is the client still in this group (`members`)? Is the destination address
 * served in the group, and by this very machine (`served`)? So neither a slot's next machine nor a service's
 * next one receives a packet of an earlier connection, whatever the host's NAT remembers. An address without
 * a server is refused before routing, whether the host has a route to it or not.
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
 * Returns the rules that redirect the ports of machines to the free ports on which the services listen. So a proxy of
 * the host itself on the usual port stays undisturbed, and no machine reaches it.
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

/** Removes both tables of the instance. The text first adds them, so that a missing table causes no error. */
export function removeInstanceTables(instance: number): string {
  const { table } = instanceNames(instance);
  return ["inet", "netdev"]
    .map((family) => `add table ${family} ${table}\ndelete table ${family} ${table}\n`)
    .join("");
}

/** Lets machines out through this interface only. Null: through no interface. */
export function setUplink(instance: number, uplink: string | null): string {
  const { table } = instanceNames(instance);
  const add = uplink === null ? "" : `add element inet ${table} uplink { "${uplink}" }\n`;
  return `flush set inet ${table} uplink\n${add}`;
}

/**
 * Network access of a machine, as membership in the sets. The tenancy is a number drawn each time a slot becomes open;
 * it marks the connections made since. So packets of an earlier tenant's connection reach no machine, though the
 * address is the same and the host's NAT still has the mapping.
 */
export type NetworkAccess = { mode: "off" } | { mode: "restricted" } | { mode: "open"; tenancy: number };

const ELEMENTS: Record<
  NetworkMode,
  (names: InstanceNames, address: string, access: NetworkAccess) => string[]
> = {
  off: () => [],
  restricted: ({ table }, address) => [`element inet ${table} restricted { ${address} }`],
  open: ({ table }, address, access) => {
    const tenancy = "tenancy" in access ? access.tenancy : 0;
    return [
      `element inet ${table} tenancy { ${address} : ${tenancy} }`,
      `element inet ${table} open { ${address} . ${tenancy} }`,
    ];
  },
};

/** Returns a transaction that leaves one mode and enters another. Empty if both are off. */
export function changeAccess(instance: number, slot: number, from: NetworkAccess, to: NetworkAccess): string {
  const names = instanceNames(instance);
  const { address } = slotNames(instance, slot);
  return [
    // The element is added first, because an element that another program has deleted must cause no error.
    ...ELEMENTS[from.mode](names, address, from).map((element) => `add ${element}\ndelete ${element}\n`),
    ...ELEMENTS[to.mode](names, address, to).map((element) => `add ${element}\n`),
  ].join("");
}

/**
 * Resets the count of refusals. Adds the element first: nft 1.0.6 has no `destroy`, and `delete` requires the
 * element.
 */
export function resetDenied(instance: number, slot: number): string {
  const { table } = instanceNames(instance);
  const { address } = slotNames(instance, slot);
  const element = `element inet ${table} denied { ${address} }`;
  return `add ${element}\ndelete ${element}\n`;
}
