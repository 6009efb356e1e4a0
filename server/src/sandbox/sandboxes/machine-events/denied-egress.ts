/**
 * Emits the denied connections of restricted sandboxes as events. The first event has the denials of one second. Later
 * events are at least a minute apart and report each target once for a machine. So a machine that dials random names
 * causes one event a minute.
 */
import { systemActor } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import { byWhom, recordEvent } from "#sandbox/events/events.ts";
import { findSandboxOfMachine } from "../store.ts";

type Needs = Pick<App, "db" | "machines" | "clock" | "log">;

const collectMs = 1_000;
const apartMs = 60_000;
/** Maximum of targets in one event. */
const maxTargets = 20;
/** Maximum of targets reported for one machine. */
const maxReported = 200;

interface Pending {
  targets: Map<string, string>;
  reported: Set<string>;
  dueAt: number;
}

export class DeniedEgress {
  readonly #app: Needs;
  readonly #machines = new Map<string, Pending>();
  readonly #timer: NodeJS.Timeout;
  #flushing: Promise<unknown> = Promise.resolve();

  constructor(app: Needs) {
    this.#app = app;
    app.machines.denials.onDenied((machine, { target, code }) => this.#add(machine, target, code));
    app.machines.onRemoval((machine) => {
      const pending = this.#machines.get(machine);
      this.#machines.delete(machine);
      if (pending) void this.#report(machine, pending.targets);
    });
    this.#timer = setInterval(() => void this.flush(), collectMs).unref();
  }

  /** Emits due events. `force` emits all. */
  flush({ force = false } = {}): Promise<unknown> {
    const now = Date.now();
    const due = [...this.#machines].filter(
      ([, { targets, dueAt }]) => targets.size > 0 && (force || dueAt <= now),
    );
    this.#flushing = Promise.all([
      this.#flushing,
      ...due.map(([machine, pending]) => {
        const { targets } = pending;
        for (const target of targets.keys()) pending.reported.add(target);
        Object.assign(pending, { targets: new Map<string, string>(), dueAt: now + apartMs });
        return this.#report(machine, targets);
      }),
    ]);
    return this.#flushing;
  }

  async stop(): Promise<void> {
    clearInterval(this.#timer);
    await this.flush({ force: true });
  }

  #add(machine: string, target: string, code: string): void {
    // The machine's last event is being written.
    if (this.#app.machines.isBeingRemoved(machine)) return;
    const pending = this.#machines.get(machine) ?? {
      targets: new Map<string, string>(),
      reported: new Set<string>(),
      dueAt: Date.now() + collectMs,
    };
    this.#machines.set(machine, pending);
    if (pending.reported.has(target) || pending.reported.size >= maxReported) return;
    if (pending.targets.size < maxTargets) pending.targets.set(target, code);
  }

  async #report(machine: string, targets: ReadonlyMap<string, string>): Promise<void> {
    const { db, clock, log } = this.#app;
    try {
      if (targets.size === 0) return;
      const sandbox = await findSandboxOfMachine(db, machine);
      if (!sandbox) return;
      const actor = systemActor("the egress proxy");
      await db.transaction().execute((tx) =>
        recordEvent(tx, {
          workspaceId: sandbox.workspace_id,
          event: "sandbox.egress_denied",
          sandboxId: sandbox.id,
          at: clock.now(),
          outcome: "failed",
          summary: summaryOf(sandbox.id, targets),
          detail: { ...byWhom(actor), egress_denied: [...targets.keys()], ...cureOf(sandbox.id, targets) },
          actor,
        }),
      );
    } catch (error) {
      log.warn({ machine, err: error }, "could not write an event for denied connections");
    }
  }
}

/** Lists host names that `allow_domains` can allow. */
function allowable(targets: ReadonlyMap<string, string>): string[] {
  const names = [...targets].flatMap(([target, code]) =>
    code === "not_allowed" ? [target.replace(/:\d+$/, "")] : [],
  );
  return [...new Set(names)];
}

function cureOf(id: string, targets: ReadonlyMap<string, string>): object {
  const names = allowable(targets);
  const path = `/v1/sandboxes/${id}`;
  return names.length === 0 ? {} : { allow_with: { method: "PATCH", path, add_to_allow_domains: names } };
}

function summaryOf(id: string, targets: ReadonlyMap<string, string>): string {
  const [first = ""] = targets.keys();
  const more = targets.size === 1 ? "" : ` and ${targets.size - 1} more`;
  const [name] = allowable(targets);
  const cure =
    name === undefined
      ? ""
      : ` To allow ${name}, send PATCH /v1/sandboxes/${id} with an allow_domains list that has it.`;
  return `Denied a connection to ${first}${more}.${cure}`;
}
