/** Where a list goes on, sealed to its reader: a cursor cannot be made up, read or used by somebody else. */
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { invalidField } from "./sandboxes/errors.ts";

type Needs = Pick<App, "secrets">;

/** `list` names the list, and what it was asked of: a cursor of another one does not open. */
export function sealCursor(app: Needs, actor: Actor, list: string, position: object): string {
  return app.secrets.seal(JSON.stringify(position), place(actor, list)).toString("base64url");
}

export function openCursor<Position extends object>(
  app: Needs,
  actor: Actor,
  list: string,
  cursor: string,
): Position {
  try {
    const sealed = Buffer.from(cursor, "base64url");
    return JSON.parse(app.secrets.open(sealed, place(actor, list)).toString()) as Position;
  } catch {
    throw invalidField("cursor", "is not a cursor of this list.");
  }
}

function place(actor: Actor, list: string): string {
  return `${list}:cursor:${actor.userId}`;
}
