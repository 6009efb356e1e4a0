/** Results of calls that lack a sign-in. */
import type { App } from "#app.ts";
import { offerSignIn } from "#agent/oauth/flow/sign-in-link.ts";
import type { ToolResult, ToolCall } from "#agent/tools/tool.ts";
import type { ToolsetRow } from "../store.ts";
import type { CallCredentials, CredentialsResult } from "./call-credentials.ts";

/**
 * Returns the result of a call that was not made. The run's events contain the sign-in link for the person. The model
 * does not get the link.
 */
export async function requestSignIn(
  app: App,
  { id, name }: ToolsetRow,
  endUserId: string | null,
  way: Exclude<CredentialsResult, CallCredentials>,
  call: ToolCall,
): Promise<ToolResult> {
  if (way.kind === "unavailable") return { isOk: false, text: `${name} can't be used now: ${way.why}.` };
  const isAsked = await offerSignIn(app, { id }, way.who, (link, store) =>
    call.emitWith("connection.auth_required", { toolset_id: id, end_user_id: endUserId, ...link }, store),
  );
  if (!isAsked) return { isOk: false, text: `${name} can't be used: it was deleted during the call.` };
  const when = way.isAgain ? "again, because the granted scopes do not suffice" : "first";
  const text =
    `The user has to sign in to ${name} ${when}. A link was sent to them. Ask them to open it, ` +
    "and call the tool again after the sign-in.";
  return { isOk: false, text, signIn: { toolsetId: id, who: way.who, connection: way.connection } };
}
