/**
 * Streams changes in a directory of a sandbox. The stream ends with the sandbox's run and names the reason.
 */
import type { FileChange } from "#machines/host/guest.ts";
import type { Actor } from "#accounts/actor.ts";
import { DomainError } from "#lib/errors.ts";
import { waitForMove } from "../sandboxes/lifecycle/moves.ts";
import { explain, inside, type InsideNeeds } from "../sandboxes/sandboxes.ts";
import { tooManyWatches } from "./errors.ts";
import { absolute } from "./files.ts";
import type { WatchEvent } from "./schema.ts";

/**
 * Starts a watch and returns its events. An error before the first event is thrown, and becomes an ordinary error
 * response.
 */
export async function startWatch(
  app: InsideNeeds,
  actor: Actor,
  id: string,
  { path, recursive }: { path: string; recursive: boolean },
): Promise<{ events: AsyncIterable<WatchEvent>; stop: () => void }> {
  const at = absolute(path);
  const stopping = new AbortController();
  const changes = await inside(app, actor, id, (guest) =>
    guest.watch(at, { recursive, signal: stopping.signal }).catch(asRefusal),
  );
  const first: WatchEvent = { kind: "watching", path: at, recursive };
  return {
    events: eventsOf(app, actor, id, { first, changes, signal: stopping.signal }),
    stop: () => stopping.abort(),
  };
}

async function* eventsOf(
  app: InsideNeeds,
  actor: Actor,
  id: string,
  { first, changes, signal }: { first: WatchEvent; changes: AsyncIterable<FileChange>; signal: AbortSignal },
): AsyncIterable<WatchEvent> {
  yield first;
  try {
    for await (const change of changes) yield toEvent(change);
    yield { kind: "ended", code: "path_not_found", message: "The directory was removed." };
  } catch (error) {
    if (signal.aborted) return;
    // A pause releases the machine first, and completes later.
    await waitForMove(app, id).catch(() => undefined);
    const why = await explain(app, actor, id, error);
    yield why instanceof DomainError
      ? { kind: "ended", code: why.code, message: why.detail }
      : { kind: "ended", code: "internal_error", message: "The watch broke." };
  }
}

function toEvent(change: FileChange): WatchEvent {
  if (change.kind === "overflow") return { kind: "overflow" };
  const { kind, path, isDir } = change;
  return kind === "moved" ? { kind, path, from: change.from, is_dir: isDir } : { kind, path, is_dir: isDir };
}

function asRefusal(error: unknown): never {
  throw (error as { kind?: string }).kind === "no_capacity" ? tooManyWatches() : error;
}
