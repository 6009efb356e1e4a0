/**
 * A client of a server that is killed repeatedly. The client uses its own sandboxes, sends one call at a time, and
 * records each acknowledgement: an acknowledged change must exist later.
 *
 * A call without a response may have taken effect or not. The client then reads the state and accepts either outcome,
 * but no other state.
 */
import { setTimeout as sleep } from "node:timers/promises";
import type { Api, Sandbox } from "./api.ts";

/** A violation: a response outside the contract, or an acknowledged change that is lost. */
export class Violation extends Error {}

interface Box {
  id: string;
  /** Possible states of a resource. After a call without a response, there are several. */
  status: Set<string>;
  files: Map<string, Set<string>>;
  commands: Set<string>;
}

type Outcome<T> = { isKnown: true; answer: T } | { isKnown: false };

const boxesMax = 3;
/** Deadline of retries in milliseconds. */
const patienceMs = 120_000;

export interface Tally {
  done: number;
  /** Number of calls whose response was cut off by a kill. */
  broken: number;
  /** Number of calls that were retried after a `Retry-After`. */
  retried: number;
  slowestMs: number;
  verbs: Map<string, number>;
}

export class ChaosClient {
  readonly boxes: Box[] = [];
  readonly #api: Api;
  readonly #random: () => number;
  readonly #name: string;
  readonly #tally: Tally;
  #count = 0;

  constructor(api: Api, name: string, random: () => number, tally: Tally) {
    this.#api = api;
    this.#name = name;
    this.#random = random;
    this.#tally = tally;
  }

  /** Runs one operation that the current state allows. */
  async step(): Promise<void> {
    const box = this.boxes[Math.floor(this.#random() * this.boxes.length)];
    const dice = this.#random();
    const started = performance.now();
    const verb = !box || (dice < 0.15 && this.boxes.length < boxesMax) ? "create" : pick(dice, box);
    if (verb === "create") await this.#create();
    else if (box) await this[verb](box);
    this.#tally.verbs.set(verb, (this.#tally.verbs.get(verb) ?? 0) + 1);
    this.#tally.done += 1;
    this.#tally.slowestMs = Math.max(this.#tally.slowestMs, performance.now() - started);
  }

  /** Checks every acknowledged change again. */
  async checkAll(): Promise<void> {
    for (const box of this.boxes) {
      await this.#look(box);
      if (box.status.has("paused")) await this.resume(box);
      await this.#look(box);
      for (const path of box.files.keys()) await this.#read(box, path);
      for (const command of box.commands)
        await this.#must("GET", `/v1/sandboxes/${box.id}/commands/${command}`, [200]);
    }
  }

  async deleteAll(): Promise<void> {
    while (this.boxes[0]) await this.delete(this.boxes[0]);
  }

  async #create(): Promise<void> {
    this.#count += 1;
    const nonce = `${this.#name}-${this.#count}`;
    const body = {
      template: "debian-12",
      network: "off",
      timeout_seconds: 3600,
      auto_resume: this.#random() < 0.5,
      metadata: { nonce },
    };
    const made = await this.#try<Sandbox>("POST", "/v1/sandboxes", [201], body);
    const found = made.isKnown ? made.answer : await this.#findMade(nonce);
    if (found)
      this.boxes.push({ id: found.id, status: new Set(["running"]), files: new Map(), commands: new Set() });
  }

  /** Finds the result of a create without a response: one running sandbox, or none. */
  async #findMade(nonce: string): Promise<Sandbox | undefined> {
    const query = `status=running&limit=100&metadata[nonce]=${nonce}`;
    const { items } = await this.#must<{ items: Sandbox[] }>("GET", `/v1/sandboxes?${query}`, [200]);
    if (items.length > 1) throw new Violation(`${items.length} sandboxes of one create`);
    return items[0];
  }

  async write(box: Box): Promise<void> {
    const path = `/workspace/${Math.floor(this.#random() * 3)}`;
    const content = `${this.#name} ${(this.#count += 1)}`;
    const body = { path, content: Buffer.from(content).toString("base64") };
    const before = box.files.get(path) ?? new Set([""]);
    const wrote = await this.#try("POST", `/v1/sandboxes/${box.id}/files`, [200, 201], body);
    box.files.set(path, wrote.isKnown ? new Set([content]) : new Set([...before, content]));
    await this.#afterwards(box, wrote, ["running"]);
  }

  async exec(box: Box): Promise<void> {
    const [path] = box.files.keys();
    if (path !== undefined) return this.#read(box, path);
    const ran = await this.#try("POST", `/v1/sandboxes/${box.id}/exec`, [200], { command: "echo here" });
    await this.#afterwards(box, ran, ["running"]);
  }

  async #read(box: Box, path: string): Promise<void> {
    const body = { command: `cat ${path} 2>/dev/null || true` };
    const ran = await this.#try<{ stdout: string }>("POST", `/v1/sandboxes/${box.id}/exec`, [200], body);
    if (ran.isKnown) {
      const known = box.files.get(path);
      if (!known?.has(ran.answer.stdout))
        throw new Violation(
          `${box.id} ${path} holds "${ran.answer.stdout}", not ${[...(known ?? [])].join(" | ")}`,
        );
      box.files.set(path, new Set([ran.answer.stdout]));
    }
    await this.#afterwards(box, ran, ["running"]);
  }

  async command(box: Box): Promise<void> {
    const [known] = box.commands;
    const path = `/v1/sandboxes/${box.id}/commands`;
    if (known !== undefined) {
      const got = await this.#try("GET", `${path}/${known}`, [200]);
      return this.#afterwards(box, got, ["running"]);
    }
    const started = await this.#try<{ id: string }>("POST", path, [201], { command: "exec sleep 100000" });
    if (started.isKnown) box.commands.add(started.answer.id);
    await this.#afterwards(box, started, ["running"]);
  }

  async keepAlive(box: Box): Promise<void> {
    const body = { timeout_seconds: 3600 };
    const kept = await this.#try("POST", `/v1/sandboxes/${box.id}/timeout`, [200], body);
    await this.#afterwards(box, kept, ["running"]);
  }

  async pause(box: Box): Promise<void> {
    const paused = await this.#try("POST", `/v1/sandboxes/${box.id}/pause`, [200]);
    await this.#afterwards(box, paused, ["paused"]);
  }

  async resume(box: Box): Promise<void> {
    const resumed = await this.#try("POST", `/v1/sandboxes/${box.id}/resume`, [200]);
    await this.#afterwards(box, resumed, ["running"]);
  }

  async delete(box: Box): Promise<void> {
    // The call is idempotent, so it is repeated until a response arrives.
    const gone = await this.#must<Sandbox>("DELETE", `/v1/sandboxes/${box.id}`, [200]);
    if (gone.status !== "terminated") throw new Violation(`${box.id} was deleted and is ${gone.status}`);
    this.boxes.splice(this.boxes.indexOf(box), 1);
  }

  /**
   * Records the state after a call. After a response the state is known. Without a response it is the old or the new
   * state, and a read decides.
   */
  async #afterwards(box: Box, outcome: Outcome<unknown>, states: string[]): Promise<void> {
    if (outcome.isKnown) return void (box.status = new Set(states));
    box.status = new Set([...box.status, ...states]);
    await this.#look(box);
  }

  async #look(box: Box): Promise<void> {
    const { status } = await this.#must<Sandbox>("GET", `/v1/sandboxes/${box.id}`, [200]);
    if (!box.status.has(status))
      throw new Violation(`${box.id} is ${status}, and should be ${[...box.status].join(" or ")}`);
    box.status = new Set([status]);
  }

  /** Repeats an idempotent call until a response arrives. */
  async #must<T>(method: string, path: string, expected: number[]): Promise<T> {
    for (;;) {
      const outcome = await this.#try<T>(method, path, expected);
      if (outcome.isKnown) return outcome.answer;
    }
  }

  /** Sends a call; retries after `Retry-After`, and while no server listens. */
  async #try<T>(method: string, path: string, expected: number[], body?: unknown): Promise<Outcome<T>> {
    const until = performance.now() + patienceMs;
    const sent = body === undefined ? undefined : Buffer.from(JSON.stringify(body));
    for (;;) {
      const answer = await this.#api.send(method, path, sent).catch((error: NodeJS.ErrnoException) => error);
      if (performance.now() > until) throw new Violation(`${method} ${path} gets no answer`);
      if (answer instanceof Error) {
        if (answer.code !== "ECONNREFUSED") {
          this.#tally.broken += 1;
          return { isKnown: false };
        }
        await sleep(50);
        continue;
      }
      const { status, bytes } = answer;
      if (expected.includes(status)) return { isKnown: true, answer: JSON.parse(bytes.toString()) as T };
      if (status !== 503 && status !== 429)
        throw new Violation(`${method} ${path}: ${status} ${bytes.toString().slice(0, 300)}`);
      this.#tally.retried += 1;
      await sleep(200);
    }
  }
}

function pick(dice: number, box: Box) {
  if (dice > 0.93) return "delete" as const;
  if (box.status.has("paused")) return dice < 0.85 ? ("resume" as const) : ("delete" as const);
  const verbs = ["write", "exec", "exec", "command", "keepAlive", "pause"] as const;
  return verbs[Math.floor(dice * 1000) % verbs.length] ?? "exec";
}
