/** What comes of a call that nobody signed in for. */
import type { App } from "#app.ts";
import { askToSignIn } from "#agent/oauth/flow/sign-in-link.ts";
import type { ToolAnswer, ToolCall } from "#agent/tools/tool.ts";
import type { ToolsetRow } from "../store.ts";
import type { Entry, WayIn } from "./call-credentials.ts";

/** Why nothing was called. Who follows the run learns where to sign in; the model does not, for a link is a person's. */
export async function toldToSignIn(
  app: App,
  { id, name }: ToolsetRow,
  endUserId: string | null,
  way: Exclude<WayIn, Entry>,
  call: ToolCall,
): Promise<ToolAnswer> {
  if (way.kind === "unavailable") return { isOk: false, text: `${name} can't be used now: ${way.why}.` };
  const isAsked = await askToSignIn(app, { id }, way.who, (link, store) =>
    call.sayWith("connection.auth_required", { toolset_id: id, end_user_id: endUserId, ...link }, store),
  );
  if (!isAsked) return { isOk: false, text: `${name} can't be used: it was deleted during the call.` };
  const when = way.isAgain ? "again, because what they granted is not enough" : "first";
  const text = `Somebody has to sign in to ${name} ${when}. They were given a link; ask them to open it, and call again when they have.`;
  return { isOk: false, text, signIn: { toolsetId: id, who: way.who, connection: way.connection } };
}
