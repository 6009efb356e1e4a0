/**
 * Model of a sandbox's lifecycle: the expectations of `lifecycle.property.test.ts`.
 *
 * The model has the state of each sandbox and the content of its file. A round is one event, or several concurrent
 * operations on one sandbox. During a round the sandbox may be in any state that these operations can reach
 * (`states.ts`), and each response must fit one of them. The model continues with the state after the round.
 */
import assert from "node:assert/strict";
import { RuntimeError } from "@kontor/runtime/driver.ts";
import type { Actor } from "#accounts/actor.ts";
import { DomainError } from "#lib/errors.ts";
import { onKillPoint } from "#lib/kill-points.ts";
import { runBuffered } from "../exec/exec.ts";
import { read, writeFile } from "../files/files.ts";
import { createSandbox } from "../sandboxes/lifecycle/create.ts";
import { expireSandboxes, reclaimSnapshots } from "../sandboxes/lifecycle/expire.ts";
import { keepAlive } from "../sandboxes/lifecycle/keep-alive.ts";
import { pauseSandbox } from "../sandboxes/lifecycle/pause.ts";
import { resumeSandbox } from "../sandboxes/lifecycle/resume.ts";
import { getSandbox } from "../sandboxes/sandboxes.ts";
import { moves, type Status } from "../sandboxes/states.ts";
import { terminateSandbox } from "../sandboxes/lifecycle/terminate.ts";
import { createInput, type TestHost } from "./sandbox-app.ts";

const dayMs = 24 * 3_600_000;
const file = "/workspace/file";
const lifetimeSeconds = 600;

export type Verb = "read" | "write" | "exec" | "keepAlive" | "pause" | "resume" | "terminate" | "get";

interface Box {
  id: string;
  isAutoResumed: boolean;
  onTimeout: "kill" | "pause";
  status: Status;
  /** The last acknowledged content; several candidates after concurrent or unacknowledged writes. */
  contents: Set<string>;
  deadlineMs: number;
  pausedAtMs: number;
}

interface Round {
  nth: number;
  verbs: Verb[];
}
export type Event =
  | { kind: "create"; isAutoResumed: boolean; onTimeout: "kill" | "pause" }
  | ({ kind: "verbs" } & Round)
  | ({ kind: "failing"; fails: "checkpoint" | "restore" } & Round)
  | { kind: "pass"; seconds: number }
  | { kind: "restart" }
  | { kind: "dies"; nth: number; point: string };

/** Returns the states that a sandbox may have during these concurrent operations. */
function reachable(box: Box, verbs: readonly Verb[]): Set<Status> {
  const states = new Set<Status>([box.status]);
  const calls = verbs.some((name) => name === "read" || name === "write" || name === "exec");
  for (let before = -1; before !== states.size;) {
    before = states.size;
    for (const [name, move] of Object.entries(moves)) {
      const isMade = verbs.includes(name as Verb) || (name === "resume" && calls && box.isAutoResumed);
      if (isMade && move.from.some((from) => states.has(from))) states.add(move.to);
    }
  }
  return states;
}

/** Returns the error codes of an operation while the sandbox is in one of these states. */
function refusals(
  name: Verb,
  box: Box,
  { states, isFailing, isPaused }: { states: ReadonlySet<Status>; isFailing: boolean; isPaused: boolean },
): Set<string> {
  const allowed = new Set<string>();
  if (name === "get" || name === "terminate") return allowed;
  if (states.has("terminated")) allowed.add("sandbox_terminated");
  if (
    states.has("paused") &&
    name !== "resume" &&
    // With auto_resume, only calls that a pause interrupted are refused.
    (name === "pause" || name === "keepAlive" || !box.isAutoResumed || isPaused)
  ) {
    allowed.add("sandbox_paused");
  }
  if (isFailing && name === "pause") allowed.add("not_checkpointable");
  if (isFailing && name !== "pause" && name !== "keepAlive") allowed.add("restore_failed");
  return allowed;
}

export class LifecycleModel {
  readonly #host: TestHost;
  readonly #actor: Actor;
  readonly boxes: Box[] = [];
  #written = 0;

  constructor(host: TestHost, actor: Actor) {
    this.#host = host;
    this.#actor = actor;
  }

  /** Reads the file of every running sandbox, and checks that it has the last written content. */
  async readAll(): Promise<void> {
    for (const box of this.boxes.filter(({ status }) => status === "running")) {
      const found = (await this.#call("read", box, "")) as string;
      assert(box.contents.has(found), `read "${found}" where ${[...box.contents].join(" or ")} was written`);
    }
  }

  pick(index: number): Box | undefined {
    return this.boxes[index % Math.max(1, this.boxes.length)];
  }

  async play(step: Event): Promise<void> {
    if (step.kind === "create") return this.#create(step);
    if (step.kind === "pass") return this.#pass(step.seconds);
    if (step.kind === "restart") {
      await this.#host.restart();
      for (const box of this.boxes) await this.#settle(box, new Set([box.status]));
      return undefined;
    }
    const box = this.pick(step.nth);
    if (!box) return undefined;
    if (step.kind === "dies") return this.#die(box, step.point);
    if (step.kind === "failing") {
      this.#host.driver.fail(
        step.fails,
        step.fails === "checkpoint"
          ? new RuntimeError("not_checkpointable", "x is open")
          : new RuntimeError("failed", "no luck"),
      );
    }
    await this.#round(box, step.verbs, step.kind === "failing");
    this.#host.driver.heal();
    return undefined;
  }

  async #create(step: Extract<Event, { kind: "create" }>): Promise<void> {
    const input = {
      auto_resume: step.isAutoResumed,
      on_timeout: step.onTimeout,
      timeout_seconds: lifetimeSeconds,
    };
    const { id } = await createSandbox(this.#host.app, this.#actor, createInput(input));
    const box: Box = {
      id,
      isAutoResumed: step.isAutoResumed,
      onTimeout: step.onTimeout,
      status: "running",
      contents: new Set(),
      deadlineMs: this.#host.clock.now().getTime() + lifetimeSeconds * 1000,
      pausedAtMs: 0,
    };
    this.boxes.push(box);
    await this.#round(box, ["write"], false);
  }

  async #round(box: Box, verbs: Verb[], isFailing: boolean): Promise<void> {
    const states = reachable(box, verbs);
    const texts = verbs.map(() => `text ${(this.#written += 1)}`);
    const written = new Set(box.contents);
    for (const [index, name] of verbs.entries()) if (name === "write") written.add(texts[index]!);
    const answers = await Promise.allSettled(
      verbs.map((name, index) => this.#call(name, box, texts[index]!)),
    );
    const acknowledged: string[] = [];
    for (const [index, answer] of answers.entries()) {
      const name = verbs[index]!;
      const told = `${name} of a ${box.status} sandbox beside ${verbs.join(", ")}`;
      if (answer.status === "rejected") {
        const error: unknown = answer.reason;
        const code = error instanceof DomainError ? error.code : error;
        assert(
          refusals(name, box, { states, isFailing, isPaused: verbs.includes("pause") }).has(String(code)),
          `${told}: ${String(error)}`,
        );
      } else if (name === "read")
        assert(written.has(String(answer.value)), `${told}: ${String(answer.value)}`);
      else if (name === "write") acknowledged.push(texts[index]!);
    }
    const attempts = verbs.filter((name) => name === "write").length;
    // After one acknowledged write its content is expected; after several, any of them. A refused write may have
    // succeeded.
    if (attempts > 0)
      box.contents = acknowledged.length === 1 && attempts === 1 ? new Set(acknowledged) : written;
    if (verbs.includes("terminate"))
      states.forEach((status) => status !== "terminated" && states.delete(status));
    await this.#settle(box, states);
  }

  /** Ends the server's process at that point, and starts a new one. */
  async #die(box: Box, point: string): Promise<void> {
    const name = point.startsWith("pause") ? "pause" : "resume";
    const there = Promise.withResolvers<void>();
    onKillPoint(async (at) => {
      if (at !== point) return;
      there.resolve();
      await new Promise(() => {});
    });
    const work = this.#call(name, box, "").catch(() => {});
    await Promise.race([there.promise, work]);
    onKillPoint(undefined);
    await this.#host.restart();
    await this.#settle(box, reachable(box, [name]));
  }

  async #pass(seconds: number): Promise<void> {
    this.#host.clock.advance(seconds * 1000);
    const now = this.#host.clock.now().getTime();
    await expireSandboxes(this.#host.app);
    await reclaimSnapshots(this.#host.app);
    for (const box of this.boxes) {
      let { status } = box;
      if (status === "running" && box.deadlineMs <= now)
        status = box.onTimeout === "kill" ? "terminated" : "paused";
      else if (status === "paused" && box.pausedAtMs + 30 * dayMs <= now) status = "terminated";
      await this.#settle(box, new Set([status]));
    }
  }

  /**
   * Checks that the current state is one of these, that no operation is in flight, and that the record agrees with the
   * machines.
   */
  async #settle(box: Box, states: ReadonlySet<Status>): Promise<void> {
    const row = await getSandbox(this.#host.app, this.#actor, box.id);
    assert(states.has(row.status), `it is ${row.status} where only ${[...states].join(" or ")} was possible`);
    assert.equal(row.transition, null);
    assert.equal(row.machine_id === null, row.status !== "running");
    if (box.status !== "paused" && row.status === "paused") box.pausedAtMs = this.#host.clock.now().getTime();
    box.status = row.status;
    box.deadlineMs = row.expires_at.getTime();
  }

  async #call(name: Verb, box: Box, text: string): Promise<unknown> {
    const { app } = this.#host;
    const actor = this.#actor;
    switch (name) {
      case "get":
        return getSandbox(app, actor, box.id);
      case "read": {
        const found = await read(app, actor, box.id, file);
        return Buffer.from(found.is_dir ? "" : (found.content ?? ""), "base64").toString();
      }
      case "write":
        return writeFile(app, actor, box.id, {
          path: file,
          content: Buffer.from(text).toString("base64"),
          mode: 0o644,
        });
      case "exec":
        return runBuffered(app, actor, box.id, { args: ["/bin/true"], timeout_seconds: 60, stream: false });
      case "keepAlive":
        return keepAlive(app, actor, box.id, lifetimeSeconds);
      case "pause":
        return pauseSandbox(app, actor, box.id);
      case "resume":
        return resumeSandbox(app, actor, box.id);
      case "terminate":
        return terminateSandbox(app, actor, box.id);
    }
  }
}
