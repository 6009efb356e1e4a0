/**
 * Members of groups, and the services that they offer: the elements of the sets in `rules.ts`, and the names. The
 * kernel knows a group by a number, which is drawn at its first member and kept until its last one has left. A
 * restarted server reads the number from the kernel, so connections survive.
 *
 * Every method returns the nft text of a change, and assumes that the caller applies it. After a text that was not
 * applied, this object and the kernel may differ. `declare` then returns the whole state; the kernel's sets are never
 * read.
 */
import { randomInt } from "node:crypto";
import type { PrivateNetwork } from "../driver.ts";
import { instanceNames, slotNames } from "./addresses.ts";

type Service = NonNullable<PrivateNetwork["serves"]>;

/** A machine of a group, from its record. */
export interface Member {
  slot: number;
  privateNetwork: PrivateNetwork;
}

interface ServiceOfSlot extends Service {
  group: string;
  slot: number;
}

/**
 * Time for which a name resolves after its service ended. A client of a restarting database is then refused and
 * retries. With an unknown name, many programs would not retry.
 */
const LINGER_MS = 10 * 60_000;

export class Groups {
  readonly #instance: number;
  readonly #table: string;
  readonly #now: () => number;
  /** Group → its number in the kernel. */
  readonly #marks = new Map<string, number>();
  /** Slot → group. */
  readonly #members = new Map<number, string>();
  /** Group and service address → the machine that serves it. */
  readonly #services = new Map<string, ServiceOfSlot>();
  /** Group and name → address. */
  readonly #names = new Map<string, { address: string; untilMs: number }>();
  #isInDoubt = false;

  constructor(instance: number, now: () => number = Date.now) {
    this.#instance = instance;
    this.#table = `inet ${instanceNames(instance).table}`;
    this.#now = now;
  }

  /** Adopts the members of an earlier process. Returns no text: `declare` returns it once the numbers are known. */
  adopt(members: readonly Member[]): void {
    for (const { slot, privateNetwork } of members) {
      this.#members.set(slot, privateNetwork.group);
      if (privateNetwork.serves !== undefined) this.#hold(slot, privateNetwork.group, privateNetwork.serves);
    }
  }

  /** Sets the numbers that groups have in the kernel, by slot. */
  recall(marks: ReadonlyMap<number, number>): void {
    for (const [slot, group] of this.#members) {
      const mark = marks.get(slot);
      const isFree = ![...this.#marks.values()].includes(mark ?? 0);
      if (mark !== undefined && isFree && !this.#marks.has(group)) this.#marks.set(group, mark);
    }
  }

  /** Adds the machine of an unused slot to the group. */
  join(slot: number, group: string): string {
    this.#members.set(slot, group);
    return this.#textOrAll(this.#membership(slot, group, "add"));
  }

  /** Removes the slot from its group, if it is in one. */
  leave(slot: number): string {
    const group = this.#members.get(slot);
    if (group === undefined) return "";
    const text = this.withdraw(slot) + this.#membership(slot, group, "delete");
    this.#members.delete(slot);
    if (![...this.#members.values()].includes(group)) this.#marks.delete(group);
    return this.#textOrAll(text);
  }

  /** Makes the slot's machine serve this address, in place of the machine that served it before. */
  serve(slot: number, service: Service): string {
    const group = this.#members.get(slot);
    if (group === undefined) return "";
    const before = this.#services.get(key(group, service.address));
    const taken = before === undefined ? "" : this.#elements(before, "delete");
    return this.#textOrAll(taken + this.#elements(this.#hold(slot, group, service), "add"));
  }

  /**
   * Ends the services of the slot's machine. Their names stay for a while, and their addresses refuse
   * connections.
   */
  withdraw(slot: number): string {
    const held = [...this.#services.values()].filter((service) => service.slot === slot);
    this.#expireNames();
    for (const { group, address, name } of held) {
      this.#services.delete(key(group, address));
      // A later machine may have taken over the name.
      if (this.#names.get(key(group, name))?.address !== address) continue;
      this.#names.set(key(group, name), { address, untilMs: this.#now() + LINGER_MS });
    }
    return this.#textOrAll(held.map((service) => this.#elements(service, "delete")).join(""));
  }

  /** Returns the address of a name, if the slot's machine may resolve the name. */
  find(slot: number, name: string): string | undefined {
    const group = this.#members.get(slot);
    const found = group === undefined ? undefined : this.#names.get(key(group, name));
    return found === undefined || found.untilMs < this.#now() ? undefined : found.address;
  }

  /** Records that a returned text was not applied, so that `declare` returns the whole state. */
  doubt(): void {
    this.#isInDoubt = true;
  }

  get isInDoubt(): boolean {
    return this.#isInDoubt;
  }

  /** Returns the text that declares the whole state, whatever elements the sets contain. */
  declare(): string {
    this.#isInDoubt = false;
    const flush = ["map groups", "set members", "set askers", "map services", "set served"].map(
      (set) => `flush ${set.replace(" ", ` ${this.#table} `)}\n`,
    );
    const members = Array.from(this.#members, ([slot, group]) => this.#membership(slot, group, "add"));
    const services = Array.from(this.#services.values(), (service) => this.#elements(service, "add"));
    return [...flush, ...members, ...services].join("");
  }

  #textOrAll(text: string): string {
    return this.#isInDoubt ? this.declare() : text;
  }

  #hold(slot: number, group: string, service: Service): ServiceOfSlot {
    const held = { ...service, group, slot };
    this.#services.set(key(group, service.address), held);
    // An address has one name: an earlier name is dropped.
    for (const [name, { address }] of this.#names) {
      if (address === service.address && name.startsWith(key(group, ""))) this.#names.delete(name);
    }
    this.#names.set(key(group, service.name), { address: service.address, untilMs: Infinity });
    return held;
  }

  #expireNames(): void {
    for (const [name, { untilMs }] of this.#names) if (untilMs < this.#now()) this.#names.delete(name);
  }

  #markOf(group: string): number {
    let mark = this.#marks.get(group);
    while (mark === undefined) {
      const drawn = randomInt(1, 2 ** 31);
      if (![...this.#marks.values()].includes(drawn)) mark = drawn;
    }
    this.#marks.set(group, mark);
    return mark;
  }

  #membership(slot: number, group: string, verb: Verb): string {
    const { address } = slotNames(this.#instance, slot);
    const mark = this.#markOf(group);
    return [`groups { ${address} : ${mark} }`, `members { ${address} . ${mark} }`, `askers { ${address} }`]
      .map((element) => this.#text(verb, element))
      .join("");
  }

  #elements({ slot, group, address, ports }: ServiceOfSlot, verb: Verb): string {
    const machine = slotNames(this.#instance, slot).address;
    const mark = this.#markOf(group);
    return [...new Set(ports)]
      .flatMap((port) => [
        `services { ${mark} . ${address} . ${port} : ${machine} }`,
        `served { ${mark} . ${address} . ${port} . ${machine} }`,
      ])
      .map((element) => this.#text(verb, element))
      .join("");
  }

  /** Adds an element before its deletion, so that an element deleted by another program causes no error. */
  #text(verb: Verb, element: string): string {
    const add = `add element ${this.#table} ${element}\n`;
    return verb === "add" ? add : `${add}delete element ${this.#table} ${element}\n`;
  }
}

type Verb = "add" | "delete";

/** Joins the two texts with a space, which no group and no name contains. */
function key(group: string, what: string): string {
  return `${group} ${what}`;
}
