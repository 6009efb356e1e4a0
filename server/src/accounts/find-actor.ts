/**
 * Finds the actor of a credential with a query by the hash of its secret. Results are cached for two seconds, because a
 * polling client sends the same token hundreds of times a minute. Each change of a token, a membership or a workspace
 * in this process clears the cache, so a revoked token stops working at once. A change by another process (an
 * operator's command) takes effect within two seconds.
 */
import { type Selectable, type SqlBool, sql } from "kysely";
import type { Db } from "#schema.ts";
import type { App } from "../app.ts";
import type { Actor, Credential, ReachableWorkspace } from "./actor.ts";
import type { Scope } from "./roles.ts";
import { hashSecret } from "./secrets.ts";
import type { ApiTokensTable, SessionsTable } from "./tables.ts";

const keptMs = 2000;
/** Maximum of cached entries, so that a flood of tokens costs queries but no memory. */
const mostKept = 10_000;
/** `last_used_at` and `last_seen_at` are shown to people: a minute is exact enough, and saves a write per request. */
const touchEveryMs = 60_000;

interface CachedActor {
  actor: Actor;
  untilMs: number;
}

class ActorCache {
  /** Counts the clearings of the cache. A result of a query from before a clearing may be stale and is not cached. */
  generation = 0;
  readonly byHash = new Map<string, CachedActor>();
}

const caches = new WeakMap<object, ActorCache>();

function cacheOf(db: Db): ActorCache {
  const cache = caches.get(db) ?? new ActorCache();
  caches.set(db, cache);
  return cache;
}

/** Clears the cache. Call it after the commit of any change to tokens, sessions, members, plans or suspension. */
export function clearActorCache({ db }: Pick<App, "db">): void {
  const cache = cacheOf(db);
  cache.generation++;
  cache.byHash.clear();
}

type Needs = Pick<App, "db" | "clock" | "log">;

export async function findActor(app: Needs, { kind, secret }: Credential): Promise<Actor | undefined> {
  const hash = hashSecret(secret);
  const nowMs = app.clock.now().getTime();
  const cache = cacheOf(app.db);
  // The key includes the kind, because the secret of a session is not a token, and a token is not a cookie.
  const key = `${kind} ${hash}`;
  const kept = cache.byHash.get(key);
  if (kept && nowMs < kept.untilMs) return kept.actor;
  const { generation } = cache;
  const found = (await finders[kind](app, [hash])).get(hash);
  if (!found) return undefined;
  if (cache.byHash.size >= mostKept) cache.byHash.clear();
  const untilMs = Math.min(nowMs + keptMs, found.expiresAt?.getTime() ?? Number.POSITIVE_INFINITY);
  if (cache.generation === generation) cache.byHash.set(key, { actor: found.actor, untilMs });
  return found.actor;
}

/** Finds the actors of many credentials, uncached, with one query for tokens and one for sessions. */
export async function findActors(
  app: Needs,
  credentials: readonly Credential[],
): Promise<(Actor | undefined)[]> {
  const hashed = credentials.map(({ kind, secret }) => ({ kind, hash: hashSecret(secret) }));
  const hashesOf = (wanted: Credential["kind"]) =>
    hashed.filter(({ kind }) => kind === wanted).map(({ hash }) => hash);
  const found = { token: new Map<string, ActorLookup>(), session: new Map<string, ActorLookup>() };
  for (const kind of ["token", "session"] as const) {
    const hashes = hashesOf(kind);
    if (hashes.length > 0) found[kind] = await finders[kind](app, hashes);
  }
  return hashed.map(({ kind, hash }) => found[kind].get(hash)?.actor);
}

interface ActorLookup {
  actor: Actor;
  expiresAt: Date | null;
}

/** The personal workspace comes first, then teams in the order in which they were joined. */
const reachable = (boundTo: ReturnType<typeof sql>) => sql<ReachableWorkspace[]>`(
  select coalesce(
    json_agg(
      json_build_object(
        'id', w.id, 'kind', w.kind, 'role', coalesce(m.role, 'owner'), 'plan', w.plan,
        'sandboxTier', w.sandbox_tier, 'suspended', w.suspended_at is not null
      ) order by w.kind, m.created_at, w.id
    ), '[]'
  )
  from workspaces w
  left join team_members m on m.workspace_id = w.id and m.user_id = u.id
  where (w.owner_user_id = u.id or m.user_id is not null) and (${boundTo})
)`;

const among = (hashes: readonly string[]) => sql<string>`any(${sql.val([...hashes])}::text[])`;

/** Finds tokens by the hashes of their secrets. */
async function findTokens(app: Needs, hashes: readonly string[]): Promise<Map<string, ActorLookup>> {
  const now = app.clock.now();
  const rows = await app.db
    .selectFrom("api_tokens as t")
    .innerJoin("users as u", "u.id", "t.user_id")
    .select([
      "t.id",
      "t.token_hash",
      "t.name",
      "t.scopes",
      "t.class",
      "t.worker_id",
      "t.user_id",
      "t.workspace_id",
      "t.secrets",
      "t.expires_at",
      "t.last_used_at",
    ])
    .select("u.is_operator")
    .select(reachable(sql<SqlBool>`t.workspace_id is null or w.id = t.workspace_id`).as("workspaces"))
    .where("t.token_hash", "=", among(hashes))
    .where("t.revoked_at", "is", null)
    .where((where) => where.or([where("t.expires_at", "is", null), where("t.expires_at", ">", now)]))
    .execute();
  const stale = rows.filter((row) => isStale(row.last_used_at, now)).map(({ id }) => id);
  if (stale.length > 0) {
    const used = app.db.updateTable("api_tokens").set({ last_used_at: now }).where("id", "in", stale);
    touch(app, used.execute());
  }
  return new Map(rows.map((row) => [row.token_hash, foundToken(row)]));
}

type TokenRow = Pick<
  Selectable<ApiTokensTable>,
  "id" | "name" | "scopes" | "class" | "worker_id" | "user_id" | "workspace_id" | "secrets" | "expires_at"
> & { is_operator: boolean; workspaces: ReachableWorkspace[] };

function foundToken(row: TokenRow): ActorLookup {
  const isWorker = row.class === "agent";
  return {
    expiresAt: row.expires_at,
    actor: {
      kind: isWorker ? "worker" : "api_token",
      id: isWorker && row.worker_id !== null ? row.worker_id : row.id,
      label: row.name,
      role: row.workspaces[0]?.role ?? null,
      userId: row.user_id,
      scopes: row.scopes as Scope[] | null,
      tokenId: row.id,
      isBound: row.workspace_id !== null,
      hidesSecrets: row.secrets === "hidden",
      workspaces: row.workspaces,
      ip: null,
      // An agent has only its granted scopes, not the rights of its owner as operator.
      isOperator: row.is_operator && !isWorker,
    },
  };
}

async function findSessions(app: Needs, hashes: readonly string[]): Promise<Map<string, ActorLookup>> {
  const now = app.clock.now();
  const rows = await app.db
    .selectFrom("sessions as s")
    .innerJoin("users as u", "u.id", "s.user_id")
    .select([
      "s.id",
      "s.token_hash",
      "s.user_id",
      "s.expires_at",
      "s.last_seen_at",
      "u.email",
      "u.is_operator",
    ])
    .select(reachable(sql<SqlBool>`true`).as("workspaces"))
    .where("s.token_hash", "=", among(hashes))
    .where("s.expires_at", ">", now)
    .execute();
  const stale = rows.filter((row) => isStale(row.last_seen_at, now)).map(({ id }) => id);
  if (stale.length > 0) {
    const seen = app.db.updateTable("sessions").set({ last_seen_at: now }).where("id", "in", stale);
    touch(app, seen.execute());
  }
  return new Map(rows.map((row) => [row.token_hash, foundSession(row)]));
}

type SessionRow = Pick<Selectable<SessionsTable>, "user_id" | "expires_at"> & {
  email: string;
  is_operator: boolean;
  workspaces: ReachableWorkspace[];
};

function foundSession(row: SessionRow): ActorLookup {
  return {
    expiresAt: row.expires_at,
    actor: {
      kind: "user",
      id: row.user_id,
      label: row.email,
      role: row.workspaces[0]?.role ?? null,
      userId: row.user_id,
      scopes: null,
      tokenId: null,
      workspaces: row.workspaces,
      ip: null,
      isOperator: row.is_operator,
    },
  };
}

const finders = { token: findTokens, session: findSessions };

function isStale(at: Date | null, now: Date): boolean {
  return at === null || now.getTime() - at.getTime() >= touchEveryMs;
}

/**
 * Writes the time of the last use, in the background of the request. A lost update makes a displayed time wrong by a
 * minute at most.
 */
function touch({ log }: Pick<App, "log">, update: Promise<unknown>): void {
  update.catch((error: unknown) => log.debug({ error }, "could not store the last use"));
}
