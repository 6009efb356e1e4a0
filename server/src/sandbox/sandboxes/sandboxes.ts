/**
 * Sandboxes: isolated machines for code somebody else wrote. This folder owns the sandbox's record and its life:
 * made from a template, running until its deadline, paused and resumed, terminated once and for good. It promises that a sandbox which
 * was answered exists after any crash, that its deadline is kept, and that delete works in every state. It never
 * touches the runtime: machines/ brings up and takes down what a row asks for.
 */
import { accountSuspended } from "#accounts/errors.ts";
import type { Guest } from "#machines/host/guest.ts";
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { translate } from "#machines/errors.ts";
import { whenStill } from "./lifecycle/moves.ts";
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

/** Undefined where its machine never started: the create came to nothing. */
export async function findStarted(
  app: Pick<App, "db">,
  actor: Actor,
  id: string,
): Promise<SandboxRow | undefined> {
  const row = await getSandbox(app, actor, id);
  return row.termination_reason === "start_failed" ? undefined : row;
}

/** Sandboxes a workspace still has, running or paused. */
export function countLive(db: Db, workspaceId: string): Promise<number> {
  return countLiveRows(db, workspaceId);
}

export function refuseUnlessRunning(row: Pick<SandboxRow, "status" | "termination_reason">): void {
  if (row.status === "terminated") throw sandboxTerminated(row.termination_reason);
  if (row.status === "paused") throw sandboxPaused();
}

/**
 * Whose visitors are to be served, whoever they are; waits while it is being paused or resumed. Undefined where there
 * is none, or its workspace is suspended.
 */
export async function findForVisitors(app: Pick<App, "db">, id: string): Promise<SandboxRow | undefined> {
  for (;;) {
    const row = await findVisited(app.db, id);
    if (!row || row.transition === null) return row;
    await whenStill(app, id);
  }
}

export type InsideNeeds = Pick<App, "db" | "machines" | "secrets" | "clock" | "log">;

/** The row as whoever asks may see it. */
type Look = () => Promise<SandboxRow | undefined>;

interface Entry {
  look: Look;
  mayWake: (row: SandboxRow) => boolean;
}

/**
 * Does something inside a running sandbox. One that is being paused or resumed is waited for, and one that is paused
 * and has `auto_resume` is woken, though not for a viewer of the team. Where the machine ends meanwhile, the sandbox's
 * own reason is the answer: "it ran out of memory" helps, "the connection broke" does not.
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

/** Whether the actor is a viewer of the team that owns the sandbox. */
export function isViewer({ workspaces }: Actor, { workspace_id }: SandboxRow): boolean {
  return workspaces.some(({ id, role }) => id === workspace_id && role === "viewer");
}

/** Refuses a sandbox that a call would wake. */
export async function requireAwake(app: Pick<App, "db">, id: string): Promise<void> {
  const row = await whenStill(app, id);
  if (row) refuseUnlessRunning(row);
}

/** The same for who has no token, but a signature of ours that names this sandbox. */
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

/** The row of a sandbox that runs. */
async function awake(app: InsideNeeds, { look, mayWake }: Entry): Promise<SandboxRow> {
  const row = await look();
  if (!row) throw sandboxNotFound();
  if (row.status === "running" && row.transition === null) return row;
  const still = await whenStill(app, row.id);
  if (still?.status === "paused" && still.auto_resume && mayWake(row)) await wake(app, row.id, null);
  const now = await look();
  if (!now) throw sandboxNotFound();
  refuseUnlessRunning(now);
  return now;
}

/** The sandbox's own reason where its machine ended or was paused, else the error as a caller may see it. */
export function explain(app: Pick<App, "db">, actor: Actor, id: string, error: unknown): Promise<unknown> {
  return reason(() => findSandbox(app.db, id, reachable(actor)), error);
}

const diedKinds = new Set(["machine_died", "not_running", "not_found"]);

/** `machine`: the one the call was in, where it is known. */
async function reason(look: Look, error: unknown, machine?: string | null): Promise<unknown> {
  const kind = (error as { kind?: string } | null)?.kind;
  if (kind === undefined || !diedKinds.has(kind)) return translate(error);
  const ended = await whenEnded(look, machine);
  if (!ended) return translate(error);
  return ended.status === "terminated" ? sandboxTerminated(ended.termination_reason) : cutOffByPause();
}

/**
 * A machine's end reaches its sandbox's row within milliseconds of its last process; a kernel that takes gigabytes
 * back from it may need seconds for that, and the driver gives a guest that fell silent five.
 */
const endedWithinMs = 8_000;

/** The row once it runs no longer, or in another machine than the one named: paused and resumed since. */
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
