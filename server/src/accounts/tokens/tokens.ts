/**
 * API tokens. The plaintext appears only in the response that creates the token; the database stores a SHA-256. A
 * revoked token stops working with the commit of its revocation. A token can never create a more powerful token. Only a
 * signed-in person or an unrestricted token may read or change tokens. Tokens of an agent's run may not, because a
 * token they create would outlive the run.
 */
import { transaction } from "#db/db.ts";
import { defineError } from "#lib/errors.ts";
import { newId } from "#lib/ids.ts";
import type { App } from "../../app.ts";
import type { Actor, ReachableWorkspace } from "../actor.ts";
import type { Scope } from "../roles.ts";
import { recordActivity } from "../activity/activity.ts";
import { clearActorCache } from "../find-actor.ts";
import { requireFullAccess } from "../full-access.ts";
import { requireBelow } from "../plans.ts";
import { hashSecret, newSecret } from "../secrets.ts";
import { requireWritableWorkspace, type WorkspaceParam } from "../workspaces.ts";
import { countActive, findOwn, insertToken, listOwn, revoke, type TokenRow } from "./store.ts";

export const tokenNotFound = defineError("token_not_found", 404, () => "No such API token.");

export interface NewToken {
  name: string;
  expiresInDays: number | null;
  scopes: readonly Scope[] | null;
  /** Workspace to which the token is bound. With null, the token reaches everything that its owner reaches. */
  workspace: WorkspaceParam;
  secrets: "shown" | "hidden";
}

type Needs = Pick<App, "db" | "clock">;

/** Creates a token. A token without a workspace counts for its owner's personal workspace. */
export async function createToken(
  app: Needs,
  actor: Actor,
  input: NewToken,
): Promise<TokenRow & { token: string }> {
  requireFullAccess(actor);
  const home = requireWritableWorkspace(actor, input.workspace);
  const bound = input.workspace === null || input.workspace === undefined ? null : home.id;
  const token = newSecret("svc_");
  const now = app.clock.now();
  const row = await transaction(app.db, async (tx) => {
    // The lock on the workspace's row keeps two concurrent requests from taking the same last slot.
    await tx.selectFrom("workspaces").select("id").where("id", "=", home.id).forUpdate().execute();
    requireBelow(home.plan, "apiTokens", await countActive(tx, home, actor.userId, now), home.id);
    const created = await insertToken(tx, {
      id: newId("tok_"),
      user_id: actor.userId,
      name: input.name,
      prefix: token.slice(0, 8),
      token_hash: hashSecret(token),
      scopes: input.scopes === null ? null : [...input.scopes],
      workspace_id: bound,
      secrets: input.secrets,
      created_at: now,
      expires_at:
        input.expiresInDays === null ? null : new Date(now.getTime() + input.expiresInDays * 86_400_000),
    });
    await recordActivity(tx, actor, "api_token.created", targetOf(created), home.id, {
      scopes: created.scopes,
    });
    return created;
  });
  return { ...row, token };
}

export async function listTokens(app: Needs, actor: Actor): Promise<TokenRow[]> {
  requireFullAccess(actor);
  return listOwn(app.db, actor.userId);
}

export async function getToken(app: Needs, actor: Actor, id: string): Promise<TokenRow> {
  requireFullAccess(actor);
  const row = await findOwn(app.db, actor.userId, id);
  if (!row) throw tokenNotFound();
  return row;
}

/** Counts the active tokens under a workspace's plan. */
export function countTokens(app: Needs, actor: Actor, workspace: ReachableWorkspace): Promise<number> {
  return countActive(app.db, workspace, actor.userId, app.clock.now());
}

export async function revokeToken(app: Needs, actor: Actor, id: string): Promise<void> {
  requireFullAccess(actor);
  await transaction(app.db, async (tx) => {
    const row = await findOwn(tx, actor.userId, id);
    if (!row) throw tokenNotFound();
    await revoke(tx, row.id, app.clock.now());
    const workspaceId =
      row.workspace_id ?? actor.workspaces.find(({ kind }) => kind === "personal")?.id ?? null;
    await recordActivity(tx, actor, "api_token.revoked", targetOf(row), workspaceId);
  });
  clearActorCache(app);
}

const targetOf = ({ id, name }: TokenRow) => ({ kind: "api_token", id, label: name });
