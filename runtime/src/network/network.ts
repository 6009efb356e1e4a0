/**
 * The machines' network on this host. Each machine uses a slot: a network namespace joined to the host by a
 * veth pair. Inside, the machine is always 10.0.0.2 and the host always 10.0.0.1. The host's end rewrites the
 * addresses, so that each machine has its own address outside and cannot use another's (rules.ts). A table of
 * the instance decides about every packet:
 *
 * - `off`: only replies to connections that the host opened to the machine.
 * - `restricted`: as `off`, and the services for restricted machines (egress.ts): a proxy and a resolver at
 *   10.0.0.1.
 * - `open`: as `off`, and the internet through the uplink, and DNS at 10.0.0.1 through a forwarder in this
 *   process.
 *
 * No mode ever lets a machine reach another machine, the host's own services, or a private range. IPv6 is
 * off.
 *
 * A machine may also be in a group (groups.ts). In any mode it then reaches the services of its group, at
 * their own addresses and names; no other machine does. These packets go from one veth pair to the other in the
 * kernel.
 *
 * The network keeps no record: `open` reads the state from the host. The instance's table exists before the first
 * namespace, and a failed step leaves nothing behind. Namespaces are kept for the next machine of the same slot (making
 * a namespace takes about 15 ms, removing it 47 ms). Surplus namespaces are removed in the background.
 */
import { randomInt } from "node:crypto";
import { readdir, readFile, writeFile } from "node:fs/promises";
import { RuntimeError, type MachineId, type NetworkMode, type PrivateNetwork } from "../driver.ts";
import { run } from "../exec.ts";
import { KeyedMutex } from "../keyed-mutex.ts";
import { UndoStack } from "../undo.ts";
import { instanceNames, slotNames, slotOfAddress, slotOfName } from "./addresses.ts";
import { DnsForwarder } from "./dns.ts";
import type { EgressServices } from "./egress.ts";
import { Groups, type Member } from "./groups.ts";
import { addressSlot, gatewayOnLoopback, makeSlot, removeSlot } from "./links.ts";
import { hasTables, readCounters, readRuleset } from "./listing.ts";
import { listNft, Nft } from "./nft.ts";
import {
  changeAccess,
  instanceTables,
  removeInstanceTables,
  resetDenied,
  setUplink,
  type NetworkAccess,
} from "./rules.ts";
import { removeSlotChains, slotChains } from "./slot-rules.ts";
import { defaultUplink, parseNameservers } from "./uplink.ts";

export interface HostNetworkOptions {
  /** Number of the server on this host, 0 to 63. Each server has its own tables, names and addresses. */
  instance: number;
  /**
   * Network interface for the traffic of open machines. Null: the interface of the host's default route, also after the
   * route changes.
   */
  uplink: string | null;
  /** Resolvers for open machines. Null: the host's resolvers, from /etc/resolv.conf. */
  dnsServers: string[] | null;
  /** TCP port of 10.0.0.1 at which restricted machines reach the egress proxy. */
  proxyPort: number;
  /**
   * Services for restricted machines. Without them, restricted machines reach nothing. Opened and closed with the
   * network.
   */
  egress?: EgressServices;
  /** Returns the machine that uses the slot, for `egress`. */
  machineIn?: (slot: number) => MachineId | undefined;
}

export interface Attachment {
  /** Path of the namespace, for the OCI spec and `nsenter --net=`. */
  netnsPath: string;
  hostInterface: string;
  /** Address of the machine for the host. */
  address: string;
}

/**
 * Number of unused namespaces that are kept for the next machine. An idle namespace costs about 100 kB of kernel
 * memory.
 */
const MAX_IDLE = 16;
const REFRESH_MS = 5_000;
/**
 * Timeout of `ip` and `nft`, which take 4 to 10 ms. A kernel with hundreds of namespaces still finishes well within
 * this time.
 */
const COMMAND_TIMEOUT_MS = 20_000;
const OFF: NetworkAccess = { mode: "off" };

export class HostNetwork {
  readonly #options: HostNetworkOptions;
  readonly #forwarder: DnsForwarder;
  readonly #nft = new Nft();
  readonly #groups: Groups;
  /** Slots with a namespace, in use or idle, with their network access in the sets. */
  readonly #access = new Map<number, NetworkAccess>();
  readonly #idle = new Set<number>();
  /** Keeps two operations on one slot from interleaving. */
  readonly #mutex = new KeyedMutex<number>();
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
      mayResolveOutside: (asker) => this.#access.get(slotAt(asker))?.mode === "open",
    });
  }

  /** The gateway's address, which machines reach as 10.0.0.1. Services for machines listen on it. */
  get gateway(): string {
    return instanceNames(this.#options.instance).gateway;
  }

  /**
   * Makes the tables, starts the forwarder, and adopts the slots of an earlier process in their modes. `members` are
   * the adopted machines that are in groups, with their services.
   */
  async open(members: readonly Member[] = []): Promise<void> {
    const { instance } = this.#options;
    // Adopted before the forwarder starts: it must not report a served name as unknown, nor refuse an open machine.
    this.#groups.adopt(members);
    const found = readRuleset(instance, await listNft("ruleset"));
    for (const [slot, access] of found.access) this.#access.set(slot, access);
    this.#dnsServers = await this.#resolvers();
    await ip(["-batch", "-"], gatewayOnLoopback(instance, "replace"));
    this.#dnsPort = await this.#forwarder.open();
    this.#egressPorts = await this.#openEgress();
    await this.#nft.apply(this.#tables());
    await this.#followHost();
    await this.#adopt(found);
    // A failed refresh is followed by the next one.
    this.#refresh = setInterval(() => void this.refresh().catch(() => {}), REFRESH_MS);
    this.#refresh.unref();
  }

  /** Releases the network. Machines keep their network; open machines have no DNS until the next `open`. */
  async close(options: { removeAll?: boolean } = {}): Promise<void> {
    clearInterval(this.#refresh);
    await this.waitUntilIdle();
    await this.#forwarder.close();
    await this.#options.egress?.close();
    if (options.removeAll !== true) return;
    await Promise.all(Array.from(this.#access.keys(), (slot) => this.#remove(slot)));
    await this.#nft.apply(removeInstanceTables(this.#options.instance));
    await ip(["-force", "-batch", "-"], gatewayOnLoopback(this.#options.instance, "del"));
  }

  /** Prepares the slot's namespace for a machine. Fails with `already_exists` if the slot is in use. */
  attach(slot: number, mode: NetworkMode, group?: string): Promise<Attachment> {
    return this.#mutex.run(slot, async () => {
      const names = slotNames(this.#options.instance, slot);
      if (this.#access.has(slot) && !this.#idle.has(slot)) {
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

  /** Sets the mode of a slot, with immediate effect, also on open connections. */
  setMode(slot: number, mode: NetworkMode): Promise<void> {
    return this.#mutex.run(slot, () => this.#change(slot, mode));
  }

  /**
   * Makes the slot's machine serve an address to its group from now on, in place of the machine that served it before.
   */
  serve(slot: number, service: NonNullable<PrivateNetwork["serves"]>): Promise<void> {
    return this.#mutex.run(slot, () => this.#apply(this.#groups.serve(slot, service)));
  }

  /** Ends the services of a machine that has ended: clients are refused at once instead of waiting in vain. */
  withdraw(slot: number): Promise<void> {
    return this.#mutex.run(slot, () => this.#apply(this.#groups.withdraw(slot)));
  }

  /** Restores the machine's address and route. runsc removes them, so this call precedes each start in a used slot. */
  readdress(slot: number): Promise<void> {
    return this.#mutex.run(slot, () => this.#address(slot));
  }

  /**
   * Releases the slot of an ended machine. The namespace is shut and kept for the next machine, or removed in
   * the background.
   */
  detach(slot: number): Promise<void> {
    return this.#mutex
      .run(slot, async () => {
        // A machine that a restart of the host ended has no namespace any more.
        if (!this.#access.has(slot)) return this.#apply(this.#groups.leave(slot));
        if (this.#idle.has(slot)) return;
        await this.#change(slot, "off", this.#groups.leave(slot) + resetDenied(this.#options.instance, slot));
        this.#idle.add(slot);
      })
      .then(() => this.#trim());
  }

  /** Detaches every slot outside `keep`: leftovers of an earlier process that no record mentions. */
  async sweep(keep: ReadonlySet<number>): Promise<void> {
    await Promise.all(
      this.list()
        .filter((slot) => !keep.has(slot))
        .map((slot) => this.detach(slot)),
    );
  }

  /**
   * Follows changes of the host; runs every 5 s by itself. Adopts another uplink and other resolvers, and restores
   * rules that another program removed (a firewall's restart begins with `flush ruleset`).
   */
  async refresh(): Promise<void> {
    await this.#followHost();
    const { instance } = this.#options;
    if (hasTables(instance, await listNft("tables"))) {
      return this.#groups.isInDoubt ? this.#apply(this.#groups.declare()) : undefined;
    }
    const slots = Array.from(this.#access, ([slot, access]) => {
      return (
        removeSlotChains(instance, slot) +
        slotChains(instance, slot) +
        changeAccess(instance, slot, OFF, access)
      );
    });
    const groups = this.#groups.declare();
    await this.#apply(removeInstanceTables(instance) + this.#tables() + slots.join("") + groups);
  }

  /** Returns the slots in use, in ascending order. */
  list(): number[] {
    return [...this.#access.keys()].filter((slot) => !this.#idle.has(slot)).toSorted((a, b) => a - b);
  }

  mode(slot: number): NetworkMode | undefined {
    return this.#idle.has(slot) ? undefined : this.#access.get(slot)?.mode;
  }

  /**
   * Returns the packets refused since the machine was attached, and refusals of `egress`. Packets that are not IPv4
   * from the machine's own address are dropped without a count.
   */
  async deniedCount(slot: number): Promise<number> {
    const { address } = slotNames(this.#options.instance, slot);
    const packets = (await this.deniedPackets()).get(slot) ?? 0;
    return packets + (this.#options.egress?.deniedCount(address) ?? 0);
  }

  /**
   * Returns the traffic from the machine's view: the machine received the bytes that the host's end of the pair sent.
   */
  async traffic(slot: number): Promise<{ networkRxBytes: number; networkTxBytes: number }> {
    const { hostInterface } = slotNames(this.#options.instance, slot);
    const read = async (name: string) =>
      // The interface may be in removal.
      Number(await readFile(`/sys/class/net/${hostInterface}/statistics/${name}`, "utf8").catch(() => 0));
    const [networkRxBytes, networkTxBytes] = await Promise.all([read("tx_bytes"), read("rx_bytes")]);
    return { networkRxBytes, networkTxBytes };
  }

  /** Returns the refused packets of every slot that had any. Concurrent calls share one reading of the table. */
  deniedPackets(): Promise<Map<number, number>> {
    this.#denied ??= this.#readDenied().finally(() => (this.#denied = undefined));
    return this.#denied;
  }

  /** Resolves when no work runs, also in the background. */
  waitUntilIdle(): Promise<void> {
    return this.#mutex.waitUntilIdle();
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
    this.#access.set(slot, OFF);
    await this.#nft.apply(slotChains(instance, slot));
    // Forwarding depends on the interface at which a packet arrives. Forwarding is enabled only on the machines'
    // interfaces and the uplink. net.ipv4.ip_forward=1 would make the host a router between its other networks.
    await setSysctl(`net/ipv4/conf/${hostInterface}/forwarding`, "1");
    await setSysctl(`net/ipv4/conf/${hostInterface}/accept_redirects`, "0");
    await setSysctl(`net/ipv6/conf/${hostInterface}/disable_ipv6`, "1");
  }

  async #address(slot: number): Promise<void> {
    if (!this.#access.has(slot)) throw unknownSlot(slot);
    const { hostInterface } = slotNames(this.#options.instance, slot);
    await ip(["-n", hostInterface, "-batch", "-"], addressSlot());
  }

  /** Applies a change that may include changes of groups. */
  async #apply(text: string): Promise<void> {
    try {
      await this.#nft.apply(text);
    } catch (error) {
      this.#groups.doubt();
      throw error;
    }
  }

  /**
   * Changes a slot's mode; `more` joins the same transaction. Entering a mode from off takes 3 ms, leaving a mode about
   * 15.
   */
  async #change(slot: number, mode: NetworkMode, more = ""): Promise<void> {
    const from = this.#access.get(slot);
    if (from === undefined) throw unknownSlot(slot);
    if (from.mode === mode) return this.#apply(more);
    const to: NetworkAccess = mode === "open" ? { mode, tenancy: randomInt(1, 2 ** 31) } : { mode };
    await this.#apply(changeAccess(this.#options.instance, slot, from, to) + more);
    this.#access.set(slot, to);
    this.#shutEgress(slot, from);
  }

  /** Removes the slot's namespace and interfaces. Any part may be missing. */
  async #remove(slot: number): Promise<void> {
    const { instance } = this.#options;
    const access = this.#access.get(slot);
    const shut = changeAccess(instance, slot, access ?? OFF, OFF) + this.#groups.leave(slot);
    await this.#apply(shut + resetDenied(instance, slot) + removeSlotChains(instance, slot));
    this.#access.set(slot, OFF);
    this.#shutEgress(slot, access ?? OFF);
    await ip(["-force", "-batch", "-"], removeSlot(instance, slot), [0, 1]);
    this.#access.delete(slot);
    this.#idle.delete(slot);
  }

  /** Ends the machine's connections through the proxy: the slot's next machine has the same address. */
  #shutEgress(slot: number, from: NetworkAccess): void {
    if (from.mode !== "restricted") return;
    this.#options.egress?.closeConnections(slotNames(this.#options.instance, slot).address);
  }

  #trim(): void {
    const surplus = [...this.#idle].toSorted((a, b) => a - b).slice(MAX_IDLE);
    for (const slot of surplus) {
      // A failure leaves the slot idle, and the next trim removes the slot.
      void this.#mutex
        .run(slot, async () => {
          if (this.#idle.has(slot)) await this.#remove(slot);
        })
        .catch(() => {});
    }
  }

  /** Applies the current uplink and resolvers of the host. */
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

  /** Adopts complete slots with their state in the sets, and removes incomplete ones of a killed process. */
  async #adopt(found: ReturnType<typeof readRuleset>): Promise<void> {
    const { instance } = this.#options;
    const [links, namespaces] = await Promise.all([
      readdir("/sys/class/net"),
      readdir("/run/netns").catch(() => []),
    ]);
    const slotsOf = (names: string[]) =>
      new Set(names.map((name) => slotOfName(instance, name)).filter((slot) => slot !== undefined));
    const parts = [slotsOf(links), slotsOf(namespaces), found.chained];
    for (const slot of new Set([...found.access.keys(), ...parts.flatMap((part) => [...part])])) {
      this.#access.set(slot, found.access.get(slot) ?? OFF);
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

/** Writes a setting. Some kernels have no IPv6 and no such setting; then nothing needs to be turned off. */
async function setSysctl(path: string, value: string): Promise<void> {
  await writeFile(`/proc/sys/${path}`, value).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== "ENOENT") throw error;
  });
}
