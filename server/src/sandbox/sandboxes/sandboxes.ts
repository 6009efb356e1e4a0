/**
 * Sandboxes: isolated machines for untrusted code. This folder owns a sandbox's record and lifecycle: created from a
 * template, running until its deadline, paused and resumed, terminated once. A sandbox that was returned to a caller
 * exists after any crash, its deadline is enforced, and delete works in every state. This folder never calls the
 * runtime: machines/ starts and removes machines by their rows.
 */
import { accountSuspended } from "#accounts/errors.ts";
import type { Guest } from "#machines/host/guest.ts";
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { translate } from "#machines/errors.ts";
import { waitForMove } from "./lifecycle/moves.ts";
import { wake } from "./lifecycle/restore.ts";
import { cutOffByPause, sandboxNotFound, sandboxPaused, sandboxTerminated } from "./errors.ts";
import {
  countLiveRows,
  findById,
  findSandbox,
  findVisited,
  findWorkspaces,
  type SandboxRow,
} from "./store.ts";

/** Sandboxes with their workspace, terminated ones included. */
export const workspacesOfSandboxes = findWorkspaces;

export function reachable(actor: Actor): string[] {
  return actor.workspaces.map((workspace) => workspace.id);
}

export async function getSandbox(app: Pick<App, "db">, actor: Actor, id: string): Promise<SandboxRow> {
  const row = await findSandbox(app.db, id, reachable(actor));
  if (!row) throw sandboxNotFound();
  return row;
}

/** Finds a sandbox. Undefined if its machine never started, because then the create failed. */
export async function findStarted(
  app: Pick<App, "db">,
  actor: Actor,
  id: string,
): Promise<SandboxRow | undefined> {
  const row = await getSandbox(app, actor, id);
  return row.termination_reason === "start_failed" ? undefined : row;
}

/** Number of a workspace's sandboxes that run or are paused. */
export function countLive(db: Db, workspaceId: string): Promise<number> {
  return countLiveRows(db, workspaceId);
}

export function refuseUnlessRunning(row: Pick<SandboxRow, "status" | "termination_reason">): void {
  if (row.status === "terminated") throw sandboxTerminated(row.termination_reason);
  if (row.status === "paused") throw sandboxPaused();
}

/**
 * Finds a sandbox for its visitors, and waits for a pause or resume in progress. Undefined if there is no such sandbox,
 * or its workspace is suspended.
 */
export async function findForVisitors(app: Pick<App, "db">, id: string): Promise<SandboxRow | undefined> {
  for (;;) {
    const row = await findVisited(app.db, id);
    if (!row || row.transition === null) return row;
    await waitForMove(app, id);
  }
}

export type InsideNeeds = Pick<App, "db" | "machines" | "secrets" | "clock" | "log">;

/** Reads the row with the access of the caller. */
type Look = () => Promise<SandboxRow | undefined>;

interface Entry {
  look: Look;
  mayWake: (row: SandboxRow) => boolean;
}

/**
 * Runs `work` inside a running sandbox. Waits for a pause or resume in progress, and wakes a paused sandbox with
 * `auto_resume`, except for a viewer of the team. If the machine ends meanwhile, the error gives the sandbox's own
 * reason, because "it ran out of memory" helps and "the connection broke" does not.
 */
export function inside<T>(
  app: InsideNeeds,
  actor: Actor,
  id: string,
  call: (guest: Guest, row: SandboxRow) => Promise<T>,
): Promise<T> {
  const look = () => findSandbox(app.db, id, reachable(actor));
  return insideOf(app, { look, mayWake: (row) => !isViewer(actor, row) }, call);
}

/** True if the actor is a viewer of the team that owns the sandbox. */
export function isViewer({ workspaces }: Actor, { workspace_id }: SandboxRow): boolean {
  return workspaces.some(({ id, role }) => id === workspace_id && role === "viewer");
}

/** Refuses a sandbox that a call would wake. */
export async function requireAwake(app: Pick<App, "db">, id: string): Promise<void> {
  const row = await waitForMove(app, id);
  if (row) refuseUnlessRunning(row);
}

/** Runs `work` for a caller without a token, whose signed URL names this sandbox. */
export function insideSigned<T>(
  app: InsideNeeds,
  id: string,
  call: (guest: Guest, row: SandboxRow) => Promise<T>,
): Promise<T> {
  return insideOf(app, { look: () => findById(app.db, id), mayWake: () => true }, call);
}

async function insideOf<T>(
  app: InsideNeeds,
  entry: Entry,
  call: (guest: Guest, row: SandboxRow) => Promise<T>,
): Promise<T> {
  const row = await awake(app, entry);
  try {
    // A frozen machine does not respond, so the request is refused instead of waiting for a timeout.
    if (app.machines.suspension.holds(row.machine_id ?? "")) throw accountSuspended();
    return await call(app.machines.connect(row.machine_id ?? ""), row);
  } catch (error) {
    throw await reason(entry.look, error, row.machine_id);
  }
}

/** Returns the row of a running sandbox. Wakes a paused sandbox if allowed. */
async function awake(app: InsideNeeds, { look, mayWake }: Entry): Promise<SandboxRow> {
  const row = await look();
  if (!row) throw sandboxNotFound();
  if (row.status === "running" && row.transition === null) return row;
  const still = await waitForMove(app, row.id);
  if (still?.status === "paused" && still.auto_resume && mayWake(row)) await wake(app, row.id, null);
  const now = await look();
  if (!now) throw sandboxNotFound();
  refuseUnlessRunning(now);
  return now;
}

/** Returns the sandbox's own reason if its machine ended or was paused, else the error in the form for callers. */
export function explain(app: Pick<App, "db">, actor: Actor, id: string, error: unknown): Promise<unknown> {
  return reason(() => findSandbox(app.db, id, reachable(actor)), error);
}

const diedKinds = new Set(["machine_died", "not_running", "not_found"]);

/** `machine`: the machine that served the call, if known. */
async function reason(look: Look, error: unknown, machine?: string | null): Promise<unknown> {
  const kind = (error as { kind?: string } | null)?.kind;
  if (kind === undefined || !diedKinds.has(kind)) return translate(error);
  const ended = await whenEnded(look, machine);
  if (!ended) return translate(error);
  return ended.status === "terminated" ? sandboxTerminated(ended.termination_reason) : cutOffByPause();
}

/**
 * A sandbox's row normally records the end within milliseconds of the machine's last process. The kernel may need
 * seconds to free gigabytes, and the driver gives a silent guest five seconds.
 */
const endedWithinMs = 8_000;

/**
 * Waits until the sandbox stops running, or runs in another machine after a pause and a resume; returns the row.
 */
async function whenEnded(look: Look, machine?: string | null): Promise<SandboxRow | undefined> {
  const until = Date.now() + endedWithinMs;
  for (let waitMs = 20; Date.now() < until; waitMs = Math.min(waitMs * 1.5, 250)) {
    const row = await look();
    const isElsewhere = machine !== undefined && row?.machine_id !== machine;
    if (!row || row.status !== "running" || isElsewhere) return row;
    await new Promise((resolve) => setTimeout(resolve, waitMs));
  }
  return undefined;
}

export type { SandboxRow };
