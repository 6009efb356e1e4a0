/** Cursors of lists. A cursor is sealed for its reader, so that no other person can forge, read or use it. */
import type { App } from "#app.ts";
import type { Actor } from "./actor.ts";

type Needs = Pick<App, "secrets">;

/** `list` identifies the list and its filters, so that a cursor opens for this list only. */
export function sealCursor(app: Needs, actor: Actor, list: string, position: object): string {
  return app.secrets.seal(JSON.stringify(position), place(actor, list)).toString("base64url");
}

/** Opens a cursor. Undefined if it was sealed for another list or reader. */
export function openCursor<Position extends object>(
  app: Needs,
  actor: Actor,
  list: string,
  cursor: string,
): Position | undefined {
  try {
    const sealed = Buffer.from(cursor, "base64url");
    return JSON.parse(app.secrets.open(sealed, place(actor, list)).toString()) as Position;
  } catch {
    return undefined;
  }
}

function place(actor: Actor, list: string): string {
  return `${list}:cursor:${actor.userId}`;
}
