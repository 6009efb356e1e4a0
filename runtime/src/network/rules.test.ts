import { expect, test } from "vitest";
import { changeAccess, instanceTables, removeInstanceTables, resetDenied, setUplink } from "./rules.ts";

test("checks every packet in an instance's tables, and lets machines out through the uplink only", () => {
  const egress = { proxyPort: 4128, dnsPort: 4054 };
  expect(instanceTables({ instance: 61, proxyPort: 3128, dnsPort: 4053, egress }))
    .toBe(`add table inet kontor61
flush table inet kontor61
table inet kontor61 {
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
		iifname "kv61-*" ct state new ip daddr != 198.19.0.0/16 ct mark set ip saddr map @tenancy
		iifname "kv61-*" ct state new ip daddr 198.19.0.0/16 ct mark set ip saddr map @groups
	}
	chain to_services {
		type nat hook prerouting priority dstnat; policy accept;
		iifname "kv61-*" ip daddr 198.19.0.0/16 dnat ip to ct mark . ip daddr . tcp dport map @services
	}
	chain unserved {
		type filter hook prerouting priority dstnat + 1; policy accept;
		iifname "kv61-*" ip daddr 198.19.0.0/16 jump refuse
	}
	chain to_forwarder {
		type nat hook prerouting priority dstnat; policy accept;
		iifname "kv61-*" ip daddr 100.125.255.255 meta l4proto { tcp, udp } th dport 53 ip saddr . ct mark @open redirect to :4053
		iifname "kv61-*" ip daddr 100.125.255.255 tcp dport 3128 ip saddr @restricted redirect to :4128
		iifname "kv61-*" ip daddr 100.125.255.255 udp dport 53 ip saddr @restricted redirect to :4054
		iifname "kv61-*" ip daddr 100.125.255.255 meta l4proto { tcp, udp } th dport 53 ip saddr @askers redirect to :4053
	}
	chain input {
		type filter hook input priority filter; policy accept;
		iifname "kv61-*" jump machine_to_host
		iifname != "lo" ip daddr 100.125.255.255 drop
	}
	chain machine_to_host {
		ct state established ct direction reply accept
		ct state related ct direction reply icmp type destination-unreachable accept
		ip daddr 100.125.255.255 tcp dport 4128 ct status dnat ip saddr @restricted jump to_proxy
		ip daddr 100.125.255.255 udp dport 4054 ct status dnat ip saddr @restricted jump to_resolver
		ip daddr 100.125.255.255 meta l4proto { tcp, udp } th dport 4053 ct status dnat ip saddr . ct mark @open jump to_dns
		ip daddr 100.125.255.255 meta l4proto { tcp, udp } th dport 4053 ct status dnat ip saddr @askers jump to_resolver
		jump refuse
	}
	chain to_proxy {
		ct state new update @knocks { ip saddr limit rate over 100/second burst 200 packets } jump refuse
		accept
	}
	chain to_resolver {
		update @questions { ip saddr limit rate over 200/second burst 200 packets } drop
		accept
	}
	chain to_dns {
		update @open_questions { ip saddr limit rate over 500/second burst 1000 packets } drop
		accept
	}
	chain forward {
		type filter hook forward priority filter; policy accept;
		iifname "kv61-*" oifname "kv61-*" jump between_machines
		iifname "kv61-*" jump machine_to_outside
		oifname "kv61-*" jump outside_to_machine
	}
	chain between_machines {
		ct direction original ip saddr . ct mark @members ct mark . ct original ip daddr . tcp dport . ip daddr @served jump connect
		ct direction reply ip daddr . ct mark @members ct mark . ct original ip daddr . tcp sport . ip saddr @served accept
		jump refuse
	}
	chain connect {
		ct state new add @flows { ip saddr ct count over 4096 } jump refuse
		accept
	}
	chain machine_to_outside {
		ip saddr . ct mark @open oifname @uplink ip daddr != { 0.0.0.0/8, 10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, 169.254.0.0/16, 172.16.0.0/12, 192.0.0.0/24, 192.0.2.0/24, 192.88.99.0/24, 192.168.0.0/16, 198.18.0.0/15, 224.0.0.0/3 } jump leave
		jump refuse
	}
	chain leave {
		ct state new add @flows { ip saddr ct count over 4096 } jump refuse
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
		ip saddr 100.125.0.0/16 oifname @uplink masquerade
	}
}
add table netdev kontor61
`);
});

test("has no rules for restricted machines without an egress proxy", () => {
  const rules = instanceTables({ instance: 61, proxyPort: 3128, dnsPort: 4053, egress: null });
  expect(rules).not.toContain("@restricted");
});

test("changes a mode in one transaction that touches only this machine", () => {
  const open = { mode: "open", tenancy: 77 } as const;
  expect(changeAccess(0, 300, { mode: "off" }, open)).toBe(
    "add element inet kontor0 tenancy { 100.64.1.45 : 77 }\nadd element inet kontor0 open { 100.64.1.45 . 77 }\n",
  );
  expect(changeAccess(0, 300, open, { mode: "restricted" })).toBe(
    "add element inet kontor0 tenancy { 100.64.1.45 : 77 }\ndelete element inet kontor0 tenancy { 100.64.1.45 : 77 }\n" +
      "add element inet kontor0 open { 100.64.1.45 . 77 }\ndelete element inet kontor0 open { 100.64.1.45 . 77 }\n" +
      "add element inet kontor0 restricted { 100.64.1.45 }\n",
  );
  expect(changeAccess(0, 300, { mode: "off" }, { mode: "off" })).toBe("");
});

test("adds each element before its deletion, so that a second deletion causes no error", () => {
  expect(removeInstanceTables(3)).toBe(
    "add table inet kontor3\ndelete table inet kontor3\nadd table netdev kontor3\ndelete table netdev kontor3\n",
  );
  expect(resetDenied(3, 9)).toBe(
    "add element inet kontor3 denied { 100.67.0.10 }\ndelete element inet kontor3 denied { 100.67.0.10 }\n",
  );
});

test("lets no machine out without an uplink", () => {
  expect(setUplink(3, null)).toBe("flush set inet kontor3 uplink\n");
  expect(setUplink(3, "eth0")).toBe(
    'flush set inet kontor3 uplink\nadd element inet kontor3 uplink { "eth0" }\n',
  );
});
