/** What a deployment says: all of it by step, the builder's part as one text, or as it comes. */
import { setTimeout as sleep } from "node:timers/promises";
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { getDeployment } from "./deployments.ts";
import { isOver, type StepName } from "./states.ts";
import { findById, logAfter, wholeLog } from "./store.ts";
import type { DeploymentStatus } from "./tables.ts";

/** As often as a deployment writes; a notice for each piece would cost every other commit more than this. */
const lookEveryMs = 150;
const piecesAtOnce = 100;

export interface LogEntry {
  step: StepName;
  at: Date;
  text: string;
}

export async function readLogs(app: Pick<App, "db">, actor: Actor, id: string): Promise<LogEntry[]> {
  await getDeployment(app, actor, id);
  return (await wholeLog(app.db, id)) as LogEntry[];
}

export async function readBuildLog(
  app: Pick<App, "db">,
  actor: Actor,
  id: string,
): Promise<{ text: string; truncated: boolean }> {
  const { log_truncated } = await getDeployment(app, actor, id);
  const pieces = (await wholeLog(app.db, id)).filter(({ step }) => step === "build");
  return { text: pieces.map(({ text }) => text).join(""), truncated: log_truncated };
}

export type DeploymentNews =
  | ({ seq: number } & LogEntry)
  | { seq: number; status: DeploymentStatus; error: string | null };

/**
 * What it says from there on, and what becomes of it, to its end; `seq` is where to go on from. Ends without that where
 * its project goes. For whoever was allowed to see it.
 */
export async function* followDeployment(
  app: Pick<App, "db">,
  id: string,
  signal: AbortSignal,
  after = 0,
): AsyncGenerator<DeploymentNews> {
  let seq = after;
  let told: DeploymentStatus | undefined;
  while (!signal.aborted) {
    // First: what is read after a deployment's end is all there is.
    const deployment = await findById(app.db, id);
    if (!deployment) return;
    const pieces = await logAfter(app.db, id, seq, piecesAtOnce);
    for (const piece of pieces) {
      seq = piece.seq;
      yield { seq, step: piece.step as StepName, at: piece.at, text: piece.text };
    }
    if (pieces.length === piecesAtOnce) continue;
    const { status, error } = deployment;
    if (status !== told) yield { seq, status, error };
    told = status;
    if (isOver(status)) return;
    await sleep(lookEveryMs, undefined, { signal, ref: false }).catch(() => {});
  }
}
