/** Reads versions of a function: the list, a version with its code, and the log of its build. */
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { Watchers } from "#lib/watcher.ts";
import { followLog, lookEveryMs, type LogSource, type StepLogPiece } from "#platform/step-log.ts";
import { versionNotFound } from "../errors.ts";
import { getFunction } from "../functions.ts";
import {
  findVersion,
  findVersionOf,
  listVersions,
  versionLogAfter,
  versionStatesOf,
  type ShownVersionRow,
  type VersionSummaryRow,
} from "../store.ts";
import type { VersionStep } from "../tables.ts";
import type { VersionNews, VersionState } from "./version-news.ts";

type Needs = Pick<App, "db">;
type Which = { id: string; versionId: string };

const watchers = new Watchers<Db>(lookEveryMs, versionStatesOf);

export async function getVersions(app: Needs, actor: Actor, id: string): Promise<VersionSummaryRow[]> {
  return listVersions(app.db, (await getFunction(app, actor, id)).id);
}

export async function getVersion(
  app: Needs,
  actor: Actor,
  { id, versionId }: Which,
): Promise<ShownVersionRow> {
  const version = await findVersionOf(app.db, (await getFunction(app, actor, id)).id, versionId);
  if (!version) throw versionNotFound();
  return version;
}

export async function readVersionLog(
  app: Needs,
  actor: Actor,
  which: Which,
): Promise<{ entries: StepLogPiece<VersionStep>[]; truncated: boolean }> {
  const { id, log_truncated } = await getVersion(app, actor, which);
  return { entries: await piecesAfter(app, id, 0), truncated: log_truncated };
}

/** Follows the log of a version for an authorized caller. */
export function followVersion(
  app: Needs,
  id: string,
  signal: AbortSignal,
  after = 0,
): AsyncGenerator<VersionNews> {
  const source: LogSource<VersionStep, VersionState> = {
    watch: () => watchers.watch(app.db, id),
    state: async () => {
      const version = await findVersion(app.db, id);
      return version && { status: version.state, error: version.error };
    },
    isOver: (state) => state !== "building",
    after: (seq, limit) => piecesAfter(app, id, seq, limit),
  };
  return followLog(source, signal, after);
}

async function piecesAfter({ db }: Needs, id: string, after: number, limit?: number) {
  const rows = await versionLogAfter(db, id, after, limit);
  return rows.map(({ seq, step, at, text }) => ({ seq, step: step as VersionStep, at, text }));
}
