/**
 * Which machines belong together, and what they serve to each other: the elements of the sets that `rules.ts` asks, and
 * the names. A group is a number in the kernel, drawn when its first machine comes and kept until its last one has
 * gone; it is read back by a server that starts again, so connections outlive that.
 *
 * Every verb answers the nft text of a change and takes it for made. One that was not made leaves the two in doubt: all
 * is said anew then (`declare`), and the kernel is never asked what it holds.
 */
import { randomInt } from "node:crypto";
import type { PrivateNetwork } from "../driver.ts";
import { instanceNames, slotNames } from "./addresses.ts";

type Service = NonNullable<PrivateNetwork["serves"]>;

/** A machine of a group, as its record says it. */
export interface Member {
  slot: number;
  privateNetwork: PrivateNetwork;
}

interface Held extends Service {
  group: string;
  slot: number;
}

/**
 * A name is known this long after who served it has gone: a database that starts again is refused meanwhile, which
 * programs try again, and is not said to be unknown, which they give up at.
 */
const LINGER_MS = 10 * 60_000;

export class Groups {
  readonly #instance: number;
  readonly #table: string;
  readonly #now: () => number;
  /** Group → its number. */
  readonly #marks = new Map<string, number>();
  /** Slot → group. */
  readonly #members = new Map<number, string>();
  /** Group and service address → who serves it. */
  readonly #services = new Map<string, Held>();
  /** Group and name → address. */
  readonly #names = new Map<string, { address: string; untilMs: number }>();
  #isInDoubt = false;

  constructor(instance: number, now: () => number = Date.now) {
    this.#instance = instance;
    this.#table = `inet ${instanceNames(instance).table}`;
    this.#now = now;
  }

  /** What an earlier process had. Answers no text: `declare` says it, once the numbers are known. */
  adopt(members: readonly Member[]): void {
    for (const { slot, privateNetwork } of members) {
      this.#members.set(slot, privateNetwork.group);
      if (privateNetwork.serves !== undefined) this.#hold(slot, privateNetwork.group, privateNetwork.serves);
    }
  }

  /** The numbers that groups have in the kernel, by slot. */
  recall(marks: ReadonlyMap<number, number>): void {
    for (const [slot, group] of this.#members) {
      const mark = marks.get(slot);
      const isFree = ![...this.#marks.values()].includes(mark ?? 0);
      if (mark !== undefined && isFree && !this.#marks.has(group)) this.#marks.set(group, mark);
    }
  }

  /** An unused slot's machine is in the group from here on. */
  join(slot: number, group: string): string {
    this.#members.set(slot, group);
    return this.#said(this.#membership(slot, group, "add"));
  }

  /** Also of a slot that is in no group. */
  leave(slot: number): string {
    const group = this.#members.get(slot);
    if (group === undefined) return "";
    const text = this.withdraw(slot) + this.#membership(slot, group, "delete");
    this.#members.delete(slot);
    if (![...this.#members.values()].includes(group)) this.#marks.delete(group);
    return this.#said(text);
  }

  /** The slot's machine serves this from here on; who did so before does not. */
  serve(slot: number, service: Service): string {
    const group = this.#members.get(slot);
    if (group === undefined) return "";
    const before = this.#services.get(key(group, service.address));
    const taken = before === undefined ? "" : this.#elements(before, "delete");
    return this.#said(taken + this.#elements(this.#hold(slot, group, service), "add"));
  }

  /** It serves nothing more. Its name stays for a while, and its address refuses. */
  withdraw(slot: number): string {
    const held = [...this.#services.values()].filter((service) => service.slot === slot);
    this.#forgetNames();
    for (const { group, address, name } of held) {
      this.#services.delete(key(group, address));
      // Who came after it may have its name by now.
      if (this.#names.get(key(group, name))?.address !== address) continue;
      this.#names.set(key(group, name), { address, untilMs: this.#now() + LINGER_MS });
    }
    return this.#said(held.map((service) => this.#elements(service, "delete")).join(""));
  }

  /** What the name means to the slot's machine. */
  find(slot: number, name: string): string | undefined {
    const group = this.#members.get(slot);
    const found = group === undefined ? undefined : this.#names.get(key(group, name));
    return found === undefined || found.untilMs < this.#now() ? undefined : found.address;
  }

  /** A text that was answered is not in force. */
  doubt(): void {
    this.#isInDoubt = true;
  }

  get isInDoubt(): boolean {
    return this.#isInDoubt;
  }

  /** All of it, whatever the sets hold. */
  declare(): string {
    this.#isInDoubt = false;
    const flush = ["map groups", "set members", "set askers", "map services", "set served"].map(
      (set) => `flush ${set.replace(" ", ` ${this.#table} `)}\n`,
    );
    const members = Array.from(this.#members, ([slot, group]) => this.#membership(slot, group, "add"));
    const services = Array.from(this.#services.values(), (service) => this.#elements(service, "add"));
    return [...flush, ...members, ...services].join("");
  }

  #said(text: string): string {
    return this.#isInDoubt ? this.declare() : text;
  }

  #hold(slot: number, group: string, service: Service): Held {
    const held = { ...service, group, slot };
    this.#services.set(key(group, service.address), held);
    // An address has one name: what had it before is gone.
    for (const [name, { address }] of this.#names) {
      if (address === service.address && name.startsWith(key(group, ""))) this.#names.delete(name);
    }
    this.#names.set(key(group, service.name), { address: service.address, untilMs: Infinity });
    return held;
  }

  #forgetNames(): void {
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

  #elements({ slot, group, address, ports }: Held, verb: Verb): string {
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

  /** What is taken away is added first: what somebody else has deleted is no reason to fail. */
  #text(verb: Verb, element: string): string {
    const add = `add element ${this.#table} ${element}\n`;
    return verb === "add" ? add : `${add}delete element ${this.#table} ${element}\n`;
  }
}

type Verb = "add" | "delete";

/** No group and no name has a blank in it. */
function key(group: string, what: string): string {
  return `${group} ${what}`;
}
