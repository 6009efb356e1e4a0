/**
 * Executes one call with its credentials. After a refusal, retries once with a refreshed token, or requires a sign-in.
 */
import type { App } from "#app.ts";
import { requireNewSignIn } from "#agent/oauth/access.ts";
import type { Refusal } from "#agent/oauth/provider/refusal.ts";
import type { ToolResult, ToolCall } from "#agent/tools/tool.ts";
import { requestSignIn } from "./sign-in.ts";
import type { ToolsetRow } from "../store.ts";
import { type CallCredentials, type CredentialsResult, resolveCredentials } from "./call-credentials.ts";

export interface Attempt {
  answer: ToolResult;
  /** Refusal of the credentials by the server. The call then had no effect. Undefined if the server accepted them. */
  refusal?: Refusal | undefined;
}

export async function callAuthorized(
  app: App,
  row: ToolsetRow,
  { endUserId, call }: { endUserId: string | null; call: ToolCall },
  attempt: (way: CallCredentials) => Promise<Attempt>,
): Promise<ToolResult> {
  const requireSignIn = (way: Exclude<CredentialsResult, CallCredentials>) =>
    requestSignIn(app, row, endUserId, way, call);
  const way = await resolveCredentials(app, row, endUserId);
  if (way.kind !== "open") return requireSignIn(way);
  const first = await attempt(way);
  if (!first.refusal) return first.answer;
  const next = await way.handleRefusal(first.refusal);
  if (!next) return first.answer;
  if (next.kind !== "open") return requireSignIn(next);
  const second = await attempt(next);
  if (!second.refusal) return second.answer;
  // The server refused even a fresh token, so the person may need another account.
  const last = second.refusal.scope === null ? undefined : await next.handleRefusal(second.refusal);
  return requireSignIn(
    last && last.kind !== "open" ? last : requireNewSignIn(row, endUserId, next.connection),
  );
}
