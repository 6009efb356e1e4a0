/** Cursors of this API's lists, and the API's error for an invalid cursor. */
import type { Actor } from "#accounts/actor.ts";
import { openCursor as open } from "#accounts/cursor.ts";
import type { App } from "#app.ts";
import { invalidField } from "./sandboxes/errors.ts";

export { sealCursor } from "#accounts/cursor.ts";

export function openCursor<Position extends object>(
  app: Pick<App, "secrets">,
  actor: Actor,
  list: string,
  cursor: string,
): Position {
  const position = open<Position>(app, actor, list, cursor);
  if (position === undefined)
    throw invalidField("cursor", "is not a cursor of this list; use the cursor of the previous page.");
  return position;
}
