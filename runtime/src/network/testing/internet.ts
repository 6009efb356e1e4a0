/**
 * The internet of the tests: a network namespace joined to the host by a veth pair, as its uplink. The namespace owns
 * documentation addresses, a metadata address and private addresses, and serves HTTP, TCP and UDP echo and DNS on all
 * of them. The namespace counts every received packet, so that a test can prove that no packet went out, not only that
 * no reply returned. No packet of a test ever leaves the host.
 */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import { run } from "../../exec.ts";
import { UndoStack } from "../../undo.ts";

/** The host's address in this internet, and so the source address of masqueraded machines. */
export const UPLINK_ADDRESS = "198.51.100.254";
export const WEB_ADDRESS = "198.51.100.1";
export const DNS_ADDRESS = "198.51.100.53";
export const METADATA_ADDRESS = "169.254.169.254";
export const PRIVATE_ADDRESSES = [
  "10.66.0.1",
  "172.16.66.1",
  "192.168.66.1",
  "100.100.100.200",
  "198.18.66.1",
];
export const UPLINK_ADDRESS_V6 = "2001:db8:66::fe";
export const WEB_ADDRESS_V6 = "2001:db8:66::1";

export const HTTP_PORT = 80;
/** Port of the echo servers, over TCP and UDP. */
export const ECHO_PORT = 7;

/**
 * Answers of the internet's DNS. Every other name has the address WEB_ADDRESS. Several addresses are returned in turn.
 */
export const NAMES: Readonly<Record<string, readonly string[]>> = {
  "web.test": [WEB_ADDRESS],
  // The two answers of a rebinding attack.
  "metadata.test": [METADATA_ADDRESS],
  "private.test": ["10.66.0.1"],
  "rebind.test": [WEB_ADDRESS, "10.66.0.1"],
  "host.test": [UPLINK_ADDRESS],
};

interface SeenPackets {
  source: string;
  destination: string;
  /** Protocol of the packets: `tcp`, `udp`, `icmp`, or a number. */
  protocol: string;
  packets: number;
}

export interface Internet {
  /** Interface that leads to this internet, for the network under test. */
  uplink: string;
  netnsPath: string;
  /** Returns the IPv4 packets received since the start or the last `forget`. */
  seen(): Promise<SeenPackets[]>;
  seenV6(): Promise<number>;
  forget(): Promise<void>;
  close(): Promise<void>;
}

/**
 * Starts the internet. `name` has at most 15 characters. Only one internet may run on a host at a time, because two
 * would claim the same addresses.
 */
export async function startInternet(name = "kinternet"): Promise<Internet> {
  const undo = new UndoStack();
  try {
    // A leftover of a killed test would make this start fail midway.
    await run(["ip", "-force", "-batch", "-"], {
      stdin: `link del ${name}\nnetns del ${name}\n`,
      okCodes: [0, 1],
    });
    undo.add("namespace", () => run(["ip", "netns", "del", name]));
    await run(["ip", "netns", "add", name]);
    undo.add("link", () => run(["ip", "link", "del", name], { okCodes: [0, 1] }));
    await run(["ip", "-batch", "-"], { stdin: hostSide(name) });
    await run(["ip", "-n", name, "-batch", "-"], { stdin: internetSide() });
    await run(["nsenter", ...within(name), "nft", "-f", "-"], { stdin: COUNTERS });

    const script = fileURLToPath(new URL("./servers.ts", import.meta.url));
    const server = spawn("nsenter", [...within(name), process.execPath, script], {
      stdio: ["pipe", "pipe", "inherit"],
    });
    undo.add("servers", async () => {
      if (server.exitCode !== null || server.signalCode !== null) return;
      const exited = once(server, "exit");
      server.kill("SIGKILL");
      await exited;
    });
    await Promise.race([
      once(server.stdout, "data"),
      once(server, "exit").then(() => Promise.reject(new Error("the internet's servers ended"))),
    ]);
  } catch (error) {
    await undo.unwind();
    throw error;
  }

  return {
    uplink: name,
    netnsPath: `/run/netns/${name}`,
    ...watchInternet(name),
    async close() {
      const failures = await undo.unwind();
      if (failures[0] !== undefined) throw failures[0].error;
    },
  };
}

/** Reads the counts of the internet with that name. Works from any process of the host. */
export function watchInternet(name: string): Pick<Internet, "seen" | "seenV6" | "forget"> {
  const list = async (kind: "set" | "counter", object: string) => {
    const argv = [...within(name), "nft", "-j", "list", kind, "inet", "seen", object];
    const { stdout } = await run(["nsenter", ...argv]);
    type Item = { elem?: unknown[]; packets?: number };
    const items = (JSON.parse(stdout) as { nftables: Record<string, Item>[] }).nftables;
    return items.find((item) => item[kind] !== undefined)?.[kind];
  };
  return {
    async seen() {
      type Element = { elem: { val: { concat: unknown[] }; counter: { packets: number } } };
      return ((await list("set", "heard"))?.elem ?? []).map((element) => {
        const { val, counter } = (element as Element).elem;
        const [source = "", destination = "", protocol = ""] = val.concat.map(String);
        return { source, destination, protocol, packets: counter.packets };
      });
    },
    async seenV6() {
      return (await list("counter", "heard_v6"))?.packets ?? 0;
    },
    async forget() {
      const stdin = "flush set inet seen heard\nreset counters table inet seen\n";
      await run(["nsenter", ...within(name), "nft", "-f", "-"], { stdin });
    },
  };
}

function within(name: string): string[] {
  return [`--net=/run/netns/${name}`];
}

/**
 * Adds the host's routes to every address of this internet. A packet that no rule stops arrives there and is counted.
 */
function hostSide(name: string): string {
  const owned = [METADATA_ADDRESS, ...PRIVATE_ADDRESSES];
  return `link add ${name} type veth peer name eth0 netns ${name}
addr add ${UPLINK_ADDRESS}/24 dev ${name}
addr add ${UPLINK_ADDRESS_V6}/64 dev ${name} nodad
link set ${name} up
${owned.map((address) => `route add ${address}/32 dev ${name}\n`).join("")}`;
}

function internetSide(): string {
  const owned = [METADATA_ADDRESS, ...PRIVATE_ADDRESSES].map((address) => `${address}/32`);
  return `link set lo up
link set eth0 up
${[`${WEB_ADDRESS}/24`, `${DNS_ADDRESS}/24`, ...owned].map((address) => `addr add ${address} dev eth0\n`).join("")}addr add ${WEB_ADDRESS_V6}/64 dev eth0 nodad
`;
}

/** Counts each packet before any other rule sees it. Neighbour discovery belongs to the kernels, and is not counted. */
const COUNTERS = `table inet seen {
	set heard { type ipv4_addr . ipv4_addr . inet_proto; size 65535; flags dynamic; }
	counter heard_v6 { }
	chain arriving {
		type filter hook prerouting priority -450; policy accept;
		iifname "lo" accept
		update @heard { ip saddr . ip daddr . ip protocol counter }
		meta nfproto ipv6 meta l4proto { tcp, udp } counter name heard_v6
		icmpv6 type echo-request counter name heard_v6
	}
}
`;
