/** Log of a template's build: a part of it, or a stream of it. */
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { readLog, watchLog } from "#builds/builds.ts";
import { readWatched } from "#lib/watcher.ts";
import { templateNotFound } from "./errors.ts";
import { type TemplateLogEvent, type TemplateLogs, toLogPiece } from "./schema.ts";
import { getRow } from "./templates.ts";

const piecesAtOnce = 100;

export async function readLogs(
  app: Pick<App, "db">,
  actor: Actor,
  id: string,
  { after, limit }: { after: number; limit: number },
): Promise<TemplateLogs> {
  await getRow(app.db, actor, id);
  const log = await readLog(app.db, id, { after, limit });
  if (!log) throw templateNotFound();
  return {
    items: log.pieces.map(toLogPiece),
    next_after: log.pieces.at(-1)?.seq ?? after,
    truncated: log.truncated,
  };
}

/**
 * Yields log entries from an offset on, then the result of the build; ends without a result if the template was
 * deleted.
 */
export async function* followLogs(
  app: Pick<App, "db">,
  actor: Actor,
  id: string,
  { after, signal }: { after: number; signal: AbortSignal },
): AsyncGenerator<{ id: number; data: TemplateLogEvent }> {
  let at = after;
  const read = async (from: number) => {
    const log = await readLog(app.db, id, { after: from, limit: piecesAtOnce });
    return log && { ...log, isAll: log.pieces.length < piecesAtOnce };
  };
  for await (const log of readWatched(watchLog(app.db, id), { place: () => at, read, signal })) {
    for (const piece of log.pieces) {
      at = piece.seq;
      yield { id: at, data: { kind: "log", ...toLogPiece(piece) } };
    }
    if (!log.isAll || !log.isOver) continue;
    const { status, error_message } = await getRow(app.db, actor, id);
    if (status !== "building") yield { id: at, data: { kind: "finished", status, error_message } };
    return;
  }
}
