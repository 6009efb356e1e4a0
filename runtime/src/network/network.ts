/**
 * The machines' network on this host. Each machine lives in a slot: a network namespace joined to the host by a veth
 * pair, where it is always 10.0.0.2 and the host always 10.0.0.1. On the host's end the addresses are rewritten, so
 * that outside each machine has an address of its own and can pretend to no other (rules.ts). A table of the instance
 * decides what passes:
 *
 * - `off`: nothing but answers to connections the host opened to the machine.
 * - `restricted`: that, and what serves restricted machines (egress.ts): a proxy and a resolver at 10.0.0.1.
 * - `open`: that of off, the internet through the uplink, and DNS at 10.0.0.1 through a forwarder in this process.
 *
 * No mode ever lets a machine reach another, the host's own services, or a private range; IPv6 does not exist.
 *
 * Beside its mode a machine may be in a group (groups.ts): whatever the mode, it reaches what others of the group serve,
 * at addresses and by names that are the services' own, and nobody else does. Its packets go from one veth pair to the
 * other in the kernel.
 *
 * It keeps no record: `open` finds on the host what there is. The instance's table stands before the first namespace;
 * whatever fails in between leaves nothing behind. Namespaces are kept for the next machine of the same slot (making
 * one takes about 15 ms, removing 47), and those too many are removed in the background.
 */
import { randomInt } from "node:crypto";
import { readdir, readFile, writeFile } from "node:fs/promises";
import { RuntimeError, type MachineId, type NetworkMode, type PrivateNetwork } from "../driver.ts";
import { run } from "../exec.ts";
import { Turns } from "../turns.ts";
import { UndoStack } from "../undo.ts";
import { instanceNames, slotNames, slotOfAddress, slotOfName } from "./addresses.ts";
import { DnsForwarder } from "./dns.ts";
import type { EgressDoor } from "./egress.ts";
import { Groups, type Member } from "./groups.ts";
import { addressSlot, gatewayOnLoopback, makeSlot, removeSlot } from "./links.ts";
import { hasTables, readCounters, readRuleset } from "./listing.ts";
import { listNft, Nft } from "./nft.ts";
import {
  changeDoor,
  instanceTables,
  removeInstanceTables,
  resetDenied,
  setUplink,
  type Door,
} from "./rules.ts";
import { removeSlotChains, slotChains } from "./slot-rules.ts";
import { defaultUplink, parseNameservers } from "./uplink.ts";

export interface HostNetworkOptions {
  /** 0 to 63: which server on this host. Each has tables, names and addresses of its own. */
  instance: number;
  /** The interface open machines leave through; null: that of the host's default route, followed as it changes. */
  uplink: string | null;
  /** Resolvers for open machines; null: the host's, from /etc/resolv.conf. */
  dnsServers: string[] | null;
  /** The TCP port of 10.0.0.1 where restricted machines find the egress proxy. */
  proxyPort: number;
  /** What serves restricted machines; without it they reach nothing. Opened and closed with the network. */
  egress?: EgressDoor;
  /** Which machine has the slot; for `egress`. */
  machineIn?: (slot: number) => MachineId | undefined;
}

export interface Attachment {
  /** For the OCI spec and `nsenter --net=`. */
  netnsPath: string;
  hostInterface: string;
  /** The machine's address as the host sees it. */
  address: string;
}

/** Unused namespaces kept for the next machine. An idle one costs about 100 kB of kernel memory. */
const MAX_IDLE = 16;
const REFRESH_MS = 5_000;
/** `ip` and `nft` take 4 to 10 ms; a kernel busy with hundreds of namespaces still answers well within this. */
const COMMAND_TIMEOUT_MS = 20_000;
const OFF: Door = { mode: "off" };

export class HostNetwork {
  readonly #options: HostNetworkOptions;
  readonly #forwarder: DnsForwarder;
  readonly #nft = new Nft();
  readonly #groups: Groups;
  /** Slots with a namespace: in use or idle, with what the sets say of them. */
  readonly #doors = new Map<number, Door>();
  readonly #idle = new Set<number>();
  /** Two verbs on one slot never interleave. */
  readonly #turns = new Turns<number>();
  #uplink: string | null = null;
  #dnsPort = 0;
  #egressPorts: { proxyPort: number; dnsPort: number } | null = null;
  #dnsServers: readonly string[] = [];
  #refresh: NodeJS.Timeout | undefined;
  #denied: Promise<Map<number, number>> | undefined;

  constructor(options: HostNetworkOptions) {
    this.#options = options;
    this.#groups = new Groups(options.instance);
    const slotAt = (address: string) => slotOfAddress(options.instance, address) ?? -1;
    this.#forwarder = new DnsForwarder({
      address: instanceNames(options.instance).gateway,
      servers: () => this.#dnsServers,
      internal: (asker, name) => this.#groups.find(slotAt(asker), name),
      mayAskOutside: (asker) => this.#doors.get(slotAt(asker))?.mode === "open",
    });
  }

  /** The address machines know as 10.0.0.1: what serves them listens on it. */
  get gateway(): string {
    return instanceNames(this.#options.instance).gateway;
  }

  /**
   * Brings tables and forwarder up and adopts the slots an earlier process left, each in the mode it has, and the
   * `members` of groups among them with what they serve.
   */
  async open(members: readonly Member[] = []): Promise<void> {
    const { instance } = this.#options;
    // Before the forwarder, which must not say of a name that is served that there is none, nor refuse who is open.
    this.#groups.adopt(members);
    const found = readRuleset(instance, await listNft("ruleset"));
    for (const [slot, door] of found.doors) this.#doors.set(slot, door);
    this.#dnsServers = await this.#resolvers();
    await ip(["-batch", "-"], gatewayOnLoopback(instance, "replace"));
    this.#dnsPort = await this.#forwarder.open();
    this.#egressPorts = await this.#openEgress();
    await this.#nft.apply(this.#tables());
    await this.#followHost();
    await this.#adopt(found);
    // One that fails is followed by the next.
    this.#refresh = setInterval(() => void this.refresh().catch(() => {}), REFRESH_MS);
    this.#refresh.unref();
  }

  /** Lets go. Machines keep their network; those that are open have no DNS until the next `open`. */
  async close(options: { removeAll?: boolean } = {}): Promise<void> {
    clearInterval(this.#refresh);
    await this.settled();
    await this.#forwarder.close();
    await this.#options.egress?.close();
    if (options.removeAll !== true) return;
    await Promise.all(Array.from(this.#doors.keys(), (slot) => this.#remove(slot)));
    await this.#nft.apply(removeInstanceTables(this.#options.instance));
    await ip(["-force", "-batch", "-"], gatewayOnLoopback(this.#options.instance, "del"));
  }

  /** Makes the slot's namespace ready for a machine. `already_exists` where the slot is in use. */
  attach(slot: number, mode: NetworkMode, group?: string): Promise<Attachment> {
    return this.#turns.take(slot, async () => {
      const names = slotNames(this.#options.instance, slot);
      if (this.#doors.has(slot) && !this.#idle.has(slot)) {
        throw new RuntimeError("already_exists", `network slot ${slot} is in use`);
      }
      const undo = new UndoStack();
      undo.add("slot", () => this.#remove(slot));
      try {
        if (!this.#idle.delete(slot)) await this.#make(slot);
        await this.#address(slot);
        await this.#change(slot, mode, group === undefined ? "" : this.#groups.join(slot, group));
      } catch (error) {
        await undo.unwind();
        throw error;
      }
      return { netnsPath: names.netnsPath, hostInterface: names.hostInterface, address: names.address };
    });
  }

  /** Acts at once, on connections that are open too. */
  setMode(slot: number, mode: NetworkMode): Promise<void> {
    return this.#turns.take(slot, () => this.#change(slot, mode));
  }

  /** The machine in the slot serves this to its group from here on, in the place of whoever did. */
  serve(slot: number, service: NonNullable<PrivateNetwork["serves"]>): Promise<void> {
    return this.#turns.take(slot, () => this.#apply(this.#groups.serve(slot, service)));
  }

  /** The machine in the slot has ended: what it served is refused at once, where it would be waited for in vain. */
  withdraw(slot: number): Promise<void> {
    return this.#turns.take(slot, () => this.#apply(this.#groups.withdraw(slot)));
  }

  /** Puts the machine's address and route back: runsc takes them off, so this precedes each start in a used slot. */
  readdress(slot: number): Promise<void> {
    return this.#turns.take(slot, () => this.#address(slot));
  }

  /** The machine is gone. Its namespace is shut and waits for the next, or is removed in the background. */
  detach(slot: number): Promise<void> {
    return this.#turns
      .take(slot, async () => {
        // A machine that a restart of the host ended has no namespace any more.
        if (!this.#doors.has(slot)) return this.#apply(this.#groups.leave(slot));
        if (this.#idle.has(slot)) return;
        await this.#change(slot, "off", this.#groups.leave(slot) + resetDenied(this.#options.instance, slot));
        this.#idle.add(slot);
      })
      .then(() => this.#trim());
  }

  /** Detaches every slot that is not in `keep`: what an earlier process left and nobody knows. */
  async sweep(keep: ReadonlySet<number>): Promise<void> {
    await Promise.all(
      this.list()
        .filter((slot) => !keep.has(slot))
        .map((slot) => this.detach(slot)),
    );
  }

  /**
   * Follows the host, every 5 s by itself: another uplink, other resolvers, and rules that somebody took away (a
   * firewall's restart begins with `flush ruleset`) are put back as they were.
   */
  async refresh(): Promise<void> {
    await this.#followHost();
    const { instance } = this.#options;
    if (hasTables(instance, await listNft("tables"))) {
      return this.#groups.isInDoubt ? this.#apply(this.#groups.declare()) : undefined;
    }
    const slots = Array.from(this.#doors, ([slot, door]) => {
      return (
        removeSlotChains(instance, slot) + slotChains(instance, slot) + changeDoor(instance, slot, OFF, door)
      );
    });
    const groups = this.#groups.declare();
    await this.#apply(removeInstanceTables(instance) + this.#tables() + slots.join("") + groups);
  }

  /** Slots in use, in order. */
  list(): number[] {
    return [...this.#doors.keys()].filter((slot) => !this.#idle.has(slot)).toSorted((a, b) => a - b);
  }

  mode(slot: number): NetworkMode | undefined {
    return this.#idle.has(slot) ? undefined : this.#doors.get(slot)?.mode;
  }

  /**
   * Packets refused since the machine was attached, and what `egress` refused it. What is no IPv4 of its own is dropped
   * without being counted.
   */
  async deniedCount(slot: number): Promise<number> {
    const { address } = slotNames(this.#options.instance, slot);
    const packets = (await this.deniedPackets()).get(slot) ?? 0;
    return packets + (this.#options.egress?.deniedCount(address) ?? 0);
  }

  /** As its machine sees it: what the host's end of the pair sent, the machine received. */
  async traffic(slot: number): Promise<{ networkRxBytes: number; networkTxBytes: number }> {
    const { hostInterface } = slotNames(this.#options.instance, slot);
    const read = async (name: string) =>
      // It may be on its way out.
      Number(await readFile(`/sys/class/net/${hostInterface}/statistics/${name}`, "utf8").catch(() => 0));
    const [networkRxBytes, networkTxBytes] = await Promise.all([read("tx_bytes"), read("rx_bytes")]);
    return { networkRxBytes, networkTxBytes };
  }

  /** Packets refused, for every slot that had any; calls at the same time share one reading of the table. */
  deniedPackets(): Promise<Map<number, number>> {
    this.#denied ??= this.#readDenied().finally(() => (this.#denied = undefined));
    return this.#denied;
  }

  /** When nothing is under way, in the background either. */
  settled(): Promise<void> {
    return this.#turns.settled();
  }

  #tables(): string {
    const { instance, proxyPort } = this.#options;
    return (
      instanceTables({ instance, proxyPort, dnsPort: this.#dnsPort, egress: this.#egressPorts }) +
      setUplink(instance, this.#uplink)
    );
  }

  async #openEgress(): Promise<{ proxyPort: number; dnsPort: number } | null> {
    const { instance, egress, machineIn } = this.#options;
    if (egress === undefined) return null;
    return egress.open(this.gateway, (address) => {
      const slot = slotOfAddress(instance, address);
      return slot === undefined ? undefined : machineIn?.(slot);
    });
  }

  async #make(slot: number): Promise<void> {
    const { instance } = this.#options;
    const { hostInterface } = slotNames(instance, slot);
    await ip(["-batch", "-"], makeSlot(instance, slot));
    this.#doors.set(slot, OFF);
    await this.#nft.apply(slotChains(instance, slot));
    // Forwarding is asked of the interface a packet comes in by: set on ours and the uplink only, so that the host
    // does not become a router between its other networks, as net.ipv4.ip_forward=1 would make it.
    await setSysctl(`net/ipv4/conf/${hostInterface}/forwarding`, "1");
    await setSysctl(`net/ipv4/conf/${hostInterface}/accept_redirects`, "0");
    await setSysctl(`net/ipv6/conf/${hostInterface}/disable_ipv6`, "1");
  }

  async #address(slot: number): Promise<void> {
    if (!this.#doors.has(slot)) throw unknownSlot(slot);
    const { hostInterface } = slotNames(this.#options.instance, slot);
    await ip(["-n", hostInterface, "-batch", "-"], addressSlot());
  }

  /** A change that may be one of groups. */
  async #apply(text: string): Promise<void> {
    try {
      await this.#nft.apply(text);
    } catch (error) {
      this.#groups.doubt();
      throw error;
    }
  }

  /** `more` joins the same transaction. Into a mode from off takes 3 ms; out of one about 15. */
  async #change(slot: number, mode: NetworkMode, more = ""): Promise<void> {
    const from = this.#doors.get(slot);
    if (from === undefined) throw unknownSlot(slot);
    if (from.mode === mode) return this.#apply(more);
    const to: Door = mode === "open" ? { mode, tenancy: randomInt(1, 2 ** 31) } : { mode };
    await this.#apply(changeDoor(this.#options.instance, slot, from, to) + more);
    this.#doors.set(slot, to);
    this.#leftEgress(slot, from);
  }

  /** Bears that any part of the slot is missing. */
  async #remove(slot: number): Promise<void> {
    const { instance } = this.#options;
    const door = this.#doors.get(slot);
    const shut = changeDoor(instance, slot, door ?? OFF, OFF) + this.#groups.leave(slot);
    await this.#apply(shut + resetDenied(instance, slot) + removeSlotChains(instance, slot));
    this.#doors.set(slot, OFF);
    this.#leftEgress(slot, door ?? OFF);
    await ip(["-force", "-batch", "-"], removeSlot(instance, slot), [0, 1]);
    this.#doors.delete(slot);
    this.#idle.delete(slot);
  }

  /** What the machine had open through the proxy ends: the slot's next machine has the same address. */
  #leftEgress(slot: number, from: Door): void {
    if (from.mode !== "restricted") return;
    this.#options.egress?.shut(slotNames(this.#options.instance, slot).address);
  }

  #trim(): void {
    const surplus = [...this.#idle].toSorted((a, b) => a - b).slice(MAX_IDLE);
    for (const slot of surplus) {
      // Failing leaves the slot idle, where the next trim finds it.
      void this.#turns
        .take(slot, async () => {
          if (this.#idle.has(slot)) await this.#remove(slot);
        })
        .catch(() => {});
    }
  }

  /** The uplink and the resolvers as the host has them now. */
  async #followHost(): Promise<void> {
    this.#dnsServers = await this.#resolvers();
    const uplink = this.#options.uplink ?? (await defaultUplink());
    if (uplink !== null) await setSysctl(`net/ipv4/conf/${uplink}/forwarding`, "1");
    if (uplink === this.#uplink) return;
    await this.#nft.apply(setUplink(this.#options.instance, uplink));
    this.#uplink = uplink;
  }

  async #resolvers(): Promise<readonly string[]> {
    const { dnsServers } = this.#options;
    return dnsServers ?? parseNameservers(await readFile("/etc/resolv.conf", "utf8").catch(() => ""));
  }

  /** Takes over complete slots with what the sets say of them, and removes the halves a killed process left. */
  async #adopt(found: ReturnType<typeof readRuleset>): Promise<void> {
    const { instance } = this.#options;
    const [links, namespaces] = await Promise.all([
      readdir("/sys/class/net"),
      readdir("/run/netns").catch(() => []),
    ]);
    const slotsOf = (names: string[]) =>
      new Set(names.map((name) => slotOfName(instance, name)).filter((slot) => slot !== undefined));
    const parts = [slotsOf(links), slotsOf(namespaces), found.chained];
    for (const slot of new Set([...found.doors.keys(), ...parts.flatMap((part) => [...part])])) {
      this.#doors.set(slot, found.doors.get(slot) ?? OFF);
      if (!parts.every((part) => part.has(slot))) await this.#remove(slot);
    }
    this.#groups.recall(found.marks);
    await this.#apply(this.#groups.declare());
  }

  async #readDenied(): Promise<Map<number, number>> {
    const { instance } = this.#options;
    const { table } = instanceNames(instance);
    return readCounters(instance, await listNft("set", "inet", table, "denied"));
  }
}

function unknownSlot(slot: number): RuntimeError {
  return new RuntimeError("not_found", `network slot ${slot} is not attached`);
}

async function ip(args: string[], batch: string, okCodes: number[] = [0]): Promise<void> {
  await run(["ip", ...args], { stdin: batch, timeoutMs: COMMAND_TIMEOUT_MS, okCodes });
}

/** Some kernels have no IPv6 and so no such switch: then there is nothing to turn off. */
async function setSysctl(path: string, value: string): Promise<void> {
  await writeFile(`/proc/sys/${path}`, value).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== "ENOENT") throw error;
  });
}
