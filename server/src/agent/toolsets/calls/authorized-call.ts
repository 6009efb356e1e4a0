/**
 * Executes one call with its credentials. After a refusal, retries once with a refreshed token, or requires a sign-in.
 */
import type { App } from "#app.ts";
import { askAnew } from "#agent/oauth/access.ts";
import type { Refusal } from "#agent/oauth/provider/refusal.ts";
import type { ToolAnswer, ToolCall } from "#agent/tools/tool.ts";
import { toldToSignIn } from "./sign-in.ts";
import type { ToolsetRow } from "../store.ts";
import { type Entry, type WayIn, wayIn } from "./call-credentials.ts";

export interface Attempt {
  answer: ToolAnswer;
  /** Set if the server refused the credentials. The call then had no effect. */
  refusal?: Refusal | undefined;
}

export async function letIn(
  app: App,
  row: ToolsetRow,
  { endUserId, call }: { endUserId: string | null; call: ToolCall },
  attempt: (way: Entry) => Promise<Attempt>,
): Promise<ToolAnswer> {
  const told = (way: Exclude<WayIn, Entry>) => toldToSignIn(app, row, endUserId, way, call);
  const way = await wayIn(app, row, endUserId);
  if (way.kind !== "open") return told(way);
  const first = await attempt(way);
  if (!first.refusal) return first.answer;
  const next = await way.refused(first.refusal);
  if (!next) return first.answer;
  if (next.kind !== "open") return told(next);
  const second = await attempt(next);
  if (!second.refusal) return second.answer;
  // The server refused a fresh token, so the person may need another account.
  const last = second.refusal.scope === null ? undefined : await next.refused(second.refusal);
  return told(last && last.kind !== "open" ? last : askAnew(row, endUserId, next.connection));
}
