/** Reads the log of a deployment: by step, as the text of the build, or as a stream. */
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { Watchers } from "#lib/watcher.ts";
import { followLog, lookEveryMs, type LogNews, type LogSource, type StepLogPiece } from "../step-log.ts";
import { getDeployment } from "./deployments.ts";
import { isOver, type StepName } from "./states.ts";
import { findById, logAfter, statesOf, wholeLog } from "./store.ts";
import type { DeploymentStatus } from "./tables.ts";

export type LogEntry = StepLogPiece<StepName>;

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
  const pieces = (await wholeLog(app.db, id)).filter(({ step }) => step === "build" || step === "pull");
  return { text: pieces.map(({ text }) => text).join(""), truncated: log_truncated };
}

const watchers = new Watchers<Db>(lookEveryMs, statesOf);

export type DeploymentNews = LogNews<StepName, DeploymentStatus>;

/** Follows a deployment for an authorized caller. The stream ends without a state if the project is deleted. */
export function followDeployment(
  { db }: Pick<App, "db">,
  id: string,
  signal: AbortSignal,
  after = 0,
): AsyncGenerator<DeploymentNews> {
  const source: LogSource<StepName, DeploymentStatus> = {
    watch: () => watchers.watch(db, id),
    state: () => findById(db, id),
    isOver,
    after: async (seq, limit) =>
      (await logAfter(db, id, seq, limit)).map((piece) => ({ ...piece, step: piece.step as StepName })),
  };
  return followLog(source, signal, after);
}
