/** Cursors of lists, sealed for their reader: another person can neither forge, read nor use them. */
import type { App } from "#app.ts";
import type { Actor } from "./actor.ts";

type Needs = Pick<App, "secrets">;

/** `list` identifies the list and its filters: the cursor of another list does not open. */
export function sealCursor(app: Needs, actor: Actor, list: string, position: object): string {
  return app.secrets.seal(JSON.stringify(position), place(actor, list)).toString("base64url");
}

/** Undefined for a cursor that was not sealed for this list and reader. */
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
