/**
 * Maps a host name to its sandbox from memory, so that a visitor's request needs no database query while the sandbox
 * runs. An entry is forgotten when the removal of its machine begins. The removal begins after the commit that ended or
 * paused the sandbox, and before any caller sees the new state. Later requests never use a look-up that began before
 * the removal.
 */
import type { Duplex } from "node:stream";
import { accountSuspended } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { SingleFlight } from "#lib/concurrency/single-flight.ts";
import { whyTerminated } from "../sandboxes/errors.ts";
import { wake } from "../sandboxes/lifecycle/restore.ts";
import { findForVisitors, type SandboxRow } from "../sandboxes/sandboxes.ts";
import { openPreviewToken } from "../sandboxes/schema.ts";
import { canExpose, idOf } from "./hosts.ts";

type Needs = Pick<App, "db" | "machines" | "secrets" | "clock" | "log">;

/** A sandbox as its visitors find it. Visitors need `token`; null if the sandbox is public. */
export type VisitorTarget = { token: string | null } & (
  | { state: "running"; machine: string }
  | { state: "paused"; wakes: boolean }
  | { state: "terminated"; detail: string }
);

/** Time for which a look-up is remembered. A changed tier or suspension takes effect within this time. */
const rememberedMs = 2_000;
const maxRemembered = 10_000;

export class VisitedSandboxes {
  readonly #app: Needs;
  readonly #known = new Map<string, { visited: VisitorTarget | undefined; until: number }>();
  readonly #looks = new SingleFlight<VisitorTarget | undefined>();
  /** Number of removed machines. */
  #gone = 0;

  constructor(app: Needs) {
    this.#app = app;
    app.machines.onRemoval((machine) => this.#forget(machine));
  }

  /** Finds a sandbox by `name`, its id without the prefix. Undefined if visitors cannot see anything. */
  async find(
    name: string,
    { afresh }: { afresh: boolean } = { afresh: false },
  ): Promise<VisitorTarget | undefined> {
    const known = this.#known.get(name);
    if (!afresh && known !== undefined && known.until > Date.now()) return known.visited;
    return this.#looks.run(`${name} ${this.#gone}`, () => this.#look(name));
  }

  wake(name: string): Promise<void> {
    return wake(this.#app, idOf(name), null);
  }

  async connect(machine: string, port: number): Promise<Duplex> {
    if (this.#app.machines.suspension.holds(machine)) throw accountSuspended();
    return this.#app.machines.connect(machine).connect(port);
  }

  async #look(name: string): Promise<VisitorTarget | undefined> {
    const gone = this.#gone;
    const row = await findForVisitors(this.#app, idOf(name));
    const visited = row && canExpose(row) ? toVisited(this.#app, row) : undefined;
    // Any visitor may wake a paused sandbox at any time, so its entry is not kept.
    if (visited?.state === "paused" || this.#gone !== gone) this.#known.delete(name);
    else this.#remember(name, visited);
    return visited;
  }

  #remember(name: string, visited: VisitorTarget | undefined): void {
    const oldest = this.#known.keys().next().value;
    if (oldest !== undefined && this.#known.size >= maxRemembered) this.#known.delete(oldest);
    this.#known.delete(name);
    this.#known.set(name, { visited, until: Date.now() + rememberedMs });
  }

  #forget(machine: string): void {
    this.#gone += 1;
    for (const [name, { visited }] of this.#known) {
      if (visited?.state === "running" && visited.machine === machine) this.#known.delete(name);
    }
  }
}

function toVisited(app: Needs, row: SandboxRow): VisitorTarget {
  const token = openPreviewToken(app, row);
  if (row.status === "running" && row.machine_id !== null) {
    return { token, state: "running", machine: row.machine_id };
  }
  if (row.status === "paused") return { token, state: "paused", wakes: row.auto_resume };
  const why = whyTerminated[row.termination_reason ?? "host_lost"];
  return { token, state: "terminated", detail: `The sandbox is terminated: ${why}.` };
}
