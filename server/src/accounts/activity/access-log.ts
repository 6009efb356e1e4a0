/**
 * Audit entries for requests that change no row: reads, runs, refused sign-ins. The entries are written in batches in
 * the background, so that a request costs an object in memory and no query. A `kill -9` loses the entries of about the
 * last second. Memory is bounded: entries beyond the bound are dropped, and one entry records their number.
 */
import { type RawBuilder, sql } from "kysely";
import { transaction } from "#db/db.ts";
import type { Db } from "#schema.ts";
import { isTransient } from "#db/transient-errors.ts";
import type { App } from "../../app.ts";
import type { Actor } from "../actor.ts";
import { type ActivityTarget, deletedLabel, systemActor, withoutSecrets } from "./activity.ts";

/** Looks up the workspaces of targets of one kind. */
export type WorkspacesOf = (
  db: Db,
  ids: readonly string[],
) => Promise<readonly { id: string; workspace_id: string }[]>;

/**
 * Returns the ids that still exist, and locks them until the transaction ends, so that a later deletion sees the
 * entries written before.
 */
type LockExisting = (tx: Db, ids: readonly string[]) => Promise<readonly string[]>;

export interface AccessNote {
  actor: Actor;
  /** `<noun>.<verb in the past>`, such as "file.read". */
  action: string;
  target: ActivityTarget;
  /**
   * Id of the target's workspace, or a function that looks it up. Only the operator sees an entry whose actor does not
   * reach the workspace.
   */
  workspace: string | null | WorkspacesOf;
  /** Must not hold contents, arguments or secrets. */
  detail?: Readonly<Record<string, unknown>>;
  /**
   * Resource that `detail` describes. If the resource is deleted before the entry is written, the entry has no detail.
   */
  subject?: { id: string; holdExisting: LockExisting };
  /** False for an entry that the list shows by default. Default: true. */
  isAccess?: boolean;
}

/** Retention in days. Null keeps entries forever. */
export interface Retention {
  /** Retention of all entries. */
  days: number | null;
  /** Retention of reads and runs. */
  accessDays: number | null;
}

type Needs = Pick<App, "db" | "log">;

interface Pending extends AccessNote {
  atMs: number;
}

const flushEveryMs = 1_000;
const batchSize = 500;
const mostPending = 10_000;
const pruneEveryMs = 3_600_000;
const pruneBatch = 10_000;

const logs = new WeakMap<Db, AccessLog>();

/** Returns the access log of this database. The process creates it once for each database. */
export function accessLogOf({ db, log }: Needs): AccessLog {
  const known = logs.get(db) ?? new AccessLog({ db, log });
  logs.set(db, known);
  return known;
}

export class AccessLog {
  readonly #db: Db;
  readonly #log: Needs["log"];
  #pending: Pending[] = [];
  #dropped = 0;
  #timer: NodeJS.Timeout | undefined;
  #writing: Promise<void> | undefined;
  #pruning: NodeJS.Timeout | undefined;

  constructor({ db, log }: Needs) {
    this.#db = db;
    this.#log = log;
  }

  note(note: AccessNote): void {
    if (this.#pending.length >= mostPending) {
      this.#dropped++;
      return;
    }
    this.#pending.push({ ...note, atMs: performance.now() });
    if (this.#pending.length >= batchSize) void this.flush();
    else this.#schedule();
  }

  /** Resolves when all earlier entries are written, or the database is unavailable. */
  async flush(): Promise<void> {
    await this.#writing;
    this.#writing ??= this.#writeAll().finally(() => {
      this.#writing = undefined;
      if (this.#pending.length > 0) this.#schedule();
    });
    await this.#writing;
  }

  /** Deletes expired entries now and every hour. */
  startPruning(retention: Retention): void {
    const prune = () =>
      this.prune(retention).catch((error: unknown) =>
        this.#log.warn({ error }, "could not delete old activity; the next attempt is in an hour"),
      );
    void prune();
    this.#pruning = setInterval(() => void prune(), pruneEveryMs).unref();
  }

  async prune({ days, accessDays }: Retention): Promise<void> {
    if (days !== null) await this.#deleteOlder(days, sql`true`);
    if (accessDays !== null) await this.#deleteOlder(accessDays, sql`is_access`);
  }

  async #deleteOlder(days: number, kind: RawBuilder<unknown>): Promise<void> {
    for (;;) {
      const { numAffectedRows = 0n } = await sql`
        delete from activity where id = any(array(
          select id from activity where ${kind} and at < now() - make_interval(days => ${days}) limit ${pruneBatch}
        ))`.execute(this.#db);
      if (numAffectedRows < BigInt(pruneBatch)) return;
    }
  }

  async close(): Promise<void> {
    clearInterval(this.#pruning);
    await this.flush();
    clearTimeout(this.#timer);
  }

  #schedule(): void {
    this.#timer ??= setTimeout(() => void this.flush(), flushEveryMs).unref();
  }

  async #writeAll(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    while (this.#pending.length > 0) {
      const batch = this.#pending.slice(0, batchSize);
      try {
        const dropped = this.#dropped;
        if (batch.some(({ subject }) => subject))
          await transaction(this.#db, async (tx) =>
            this.#write(tx, await withoutDeleted(tx, batch), dropped),
          );
        else await this.#write(this.#db, batch, dropped);
        this.#dropped = 0;
      } catch (error) {
        this.#log.warn({ error, entries: batch.length }, "could not write entries of the audit log");
        if (isTransient(error)) return;
        // The error is permanent, so a retry would not store the entries either.
        this.#dropped += batch.length;
      }
      this.#pending.splice(0, batch.length);
    }
  }

  async #write(db: Db, batch: readonly Pending[], dropped: number): Promise<void> {
    const workspaces = await this.#workspacesOf(db, batch);
    const now = performance.now();
    const rows = batch.map((note, index) => ({
      ...rowOf(note, workspaces[index]!),
      age_ms: now - note.atMs,
    }));
    if (dropped > 0) {
      const target = { kind: "activity", id: null, label: null };
      const note = { actor: systemActor("audit log"), action: "activity.dropped", target, workspace: null };
      rows.push({ ...rowOf({ ...note, detail: { entries: dropped } }, null), age_ms: 0 });
    }
    await sql`
      insert into activity (at, actor_kind, actor_id, actor_label, actor_role, person_id, person_email, action,
        target_kind, target_id, target_label, workspace_id, ip, detail, is_access)
      select clock_timestamp() - make_interval(secs => r.age_ms / 1000), actor_kind, actor_id,
        case when actor_kind = 'user' and u.id is null then ${deletedLabel} else actor_label end, actor_role,
        person_id, u.email, action, target_kind, target_id,
        case when target_kind = 'user' and target_id is not null and t.id is null then ${deletedLabel}
          else target_label end, workspace_id, ip, detail, is_access
      from json_to_recordset(${JSON.stringify(rows)}::json) as r(age_ms float8, actor_kind text, actor_id text,
        actor_label text, actor_role text, person_id uuid, action text, target_kind text, target_id text,
        target_label text, workspace_id uuid, ip text, detail jsonb, is_access boolean)
      left join users u on u.id = r.person_id
      left join users t on r.target_kind = 'user' and t.id::text = r.target_id`.execute(db);
  }

  /** Runs one query per kind of look-up, for any number of entries. */
  async #workspacesOf(db: Db, batch: readonly Pending[]): Promise<(string | null)[]> {
    const found = new Map<WorkspacesOf, Map<string, string>>();
    for (const [lookUp, notes] of Map.groupBy(batch, ({ workspace }) => workspace)) {
      if (typeof lookUp !== "function") continue;
      const ids = [...new Set(notes.flatMap(({ target }) => target.id ?? []))];
      const rows = await lookUp(db, ids);
      found.set(lookUp, new Map(rows.map(({ id, workspace_id }) => [id, workspace_id])));
    }
    return batch.map(({ actor, target, workspace }) => {
      if (typeof workspace !== "function") return workspace;
      const id = found.get(workspace)?.get(target.id ?? "");
      // The bearer of a signed URL has no account; a signature authorizes the request instead.
      const reaches = actor.kind === "system" || actor.workspaces.some((one) => one.id === id);
      return id !== undefined && reaches ? id : null;
    });
  }
}

/** Removes the detail of entries whose subject was deleted meanwhile. */
async function withoutDeleted(tx: Db, batch: readonly Pending[]): Promise<Pending[]> {
  const left = new Set<string>();
  for (const [holdExisting, notes] of Map.groupBy(batch, ({ subject }) => subject?.holdExisting)) {
    if (!holdExisting) continue;
    const ids = [...new Set(notes.flatMap(({ subject }) => subject?.id ?? []))];
    for (const id of await holdExisting(tx, ids)) left.add(id);
  }
  return batch.map((note) => (note.subject && !left.has(note.subject.id) ? { ...note, detail: {} } : note));
}

function rowOf(
  { actor, action, target, detail = {}, isAccess = true }: AccessNote,
  workspaceId: string | null,
) {
  return {
    actor_kind: actor.kind,
    actor_id: actor.id,
    actor_label: storable(actor.label),
    actor_role: actor.workspaces.find(({ id }) => id === workspaceId)?.role ?? actor.role,
    person_id: actor.kind === "system" ? null : actor.userId,
    action,
    target_kind: target.kind,
    target_id: target.id === null ? null : storable(target.id),
    target_label: target.label === null ? null : storable(target.label),
    workspace_id: workspaceId,
    ip: actor.ip,
    detail: withoutSecrets(
      JSON.parse(JSON.stringify(detail), (_, value) => (typeof value === "string" ? storable(value) : value)),
    ),
    is_access: isAccess,
  };
}

/** Maximum number of characters of a text in an entry; the longest path fits. */
const mostCharacters = 4096;

/** PostgreSQL stores neither NUL nor half a surrogate pair. */
const storable = (text: string): string =>
  text.slice(0, mostCharacters).replaceAll("\0", "\u{FFFD}").toWellFormed();
