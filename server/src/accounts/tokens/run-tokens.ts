/**
 * Tokens of agents: each is created for a run, with the scopes of the agent's config, for its workspace only. The
 * plaintext is only in the memory of the process that executes the run. The transaction that ends the run deletes its
 * token. A token that survives a crash expires.
 */
import type { RawBuilder } from "kysely";
import type { Db } from "#schema.ts";
import { newId } from "#lib/ids.ts";
import type { App } from "../../app.ts";
import type { Scope } from "../roles.ts";
import { clearActorCache } from "../find-actor.ts";
import { hashSecret, newSecret } from "../secrets.ts";
import { type Worker, workerActor } from "../worker-actor.ts";
import { deleteOfRun, deleteRunToken, insertToken, deleteOfRunSql } from "./store.ts";

export interface RunToken {
  id: string;
  plaintext: string;
}

/** Creates the token of a run. Undefined if the workspace was deleted. */
export async function mintRunToken(
  app: Pick<App, "db" | "clock">,
  grant: { worker: Worker; runId: string; scopes: readonly Scope[]; expiresInMs: number },
): Promise<RunToken | undefined> {
  const { worker, runId, scopes } = grant;
  const actor = await workerActor(app.db, worker, scopes);
  if (!actor) return undefined;
  const plaintext = newSecret("svc_");
  const now = app.clock.now();
  const { id } = await insertToken(app.db, {
    id: newId("tok_"),
    user_id: actor.userId,
    name: worker.label,
    prefix: plaintext.slice(0, 8),
    token_hash: hashSecret(plaintext),
    scopes: [...scopes],
    class: "agent",
    worker_id: worker.workerId,
    workspace_id: worker.workspaceId,
    run_id: runId,
    created_at: now,
    expires_at: new Date(now.getTime() + grant.expiresInMs),
  });
  return { id, plaintext };
}

export async function endRunToken(app: Pick<App, "db">, { id }: RunToken): Promise<void> {
  await deleteRunToken(app.db, id);
  clearActorCache(app);
}

/**
 * Deletes the tokens in the transaction that ends the run or moves it to another process. Call `forgetActors` after the
 * commit.
 */
export function endTokensOf(tx: Db, runId: string): Promise<void> {
  return deleteOfRun(tx, runId);
}

/** Returns SQL that deletes the tokens, as a part of a statement in which `run` is the run's row. */
export function endTokensSql(): RawBuilder<unknown> {
  return deleteOfRunSql();
}
