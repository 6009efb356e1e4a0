/**
 * Audit entries for requests that change no row: reads, runs, refused sign-ins. They are written in batches in the
 * background, so that a request costs an object in memory and no query. A `kill -9` loses the entries of about the last
 * second. Memory is bounded: entries beyond the bound are dropped, and one entry records their number.
 */
import { type RawBuilder, sql } from "kysely";
import type { Db } from "#db/db.ts";
import { isPassing } from "#db/passing.ts";
import type { App } from "../../app.ts";
import type { Actor } from "../actor.ts";
import { type ActivityTarget, deletedLabel, systemActor, withoutSecrets } from "./activity.ts";

/** Looks up the workspaces of targets of one kind. */
export type WorkspacesOf = (
  db: Db,
  ids: readonly string[],
) => Promise<readonly { id: string; workspace_id: string }[]>;

export interface AccessNote {
  actor: Actor;
  /** `<noun>.<verb in the past>`, such as "file.read". */
  action: string;
  target: ActivityTarget;
  /** The target's workspace, or its look-up. An entry is for the operator alone when the actor does not reach it. */
  workspace: string | null | WorkspacesOf;
  /** Must not hold contents, arguments or secrets. */
  detail?: Readonly<Record<string, unknown>>;
  /** False for an entry that the list shows by default. */
  isAccess?: boolean;
}

/** Retention in days. Null keeps entries for ever. */
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

/** Returns the log of this database; a process has one per database. */
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
        this.#log.warn({ error }, "old activity could not be removed; the next hour tries again"),
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
        await this.#write(batch, this.#dropped);
        this.#dropped = 0;
      } catch (error) {
        this.#log.warn({ error, entries: batch.length }, "entries of the audit log could not be written");
        if (isPassing(error)) return;
        // The error is permanent, so a retry would not store them.
        this.#dropped += batch.length;
      }
      this.#pending.splice(0, batch.length);
    }
  }

  async #write(batch: readonly Pending[], dropped: number): Promise<void> {
    const workspaces = await this.#workspacesOf(batch);
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
      left join users t on r.target_kind = 'user' and t.id::text = r.target_id`.execute(this.#db);
  }

  /** Runs one query per kind of look-up, for any number of entries. */
  async #workspacesOf(batch: readonly Pending[]): Promise<(string | null)[]> {
    const found = new Map<WorkspacesOf, Map<string, string>>();
    for (const [lookUp, notes] of Map.groupBy(batch, ({ workspace }) => workspace)) {
      if (typeof lookUp !== "function") continue;
      const ids = [...new Set(notes.flatMap(({ target }) => target.id ?? []))];
      const rows = await lookUp(this.#db, ids);
      found.set(lookUp, new Map(rows.map(({ id, workspace_id }) => [id, workspace_id])));
    }
    return batch.map(({ actor, target, workspace }) => {
      if (typeof workspace !== "function") return workspace;
      const id = found.get(workspace)?.get(target.id ?? "");
      // The bearer of a signed URL has no account; the signature stands in for one.
      const reaches = actor.kind === "system" || actor.workspaces.some((one) => one.id === id);
      return id !== undefined && reaches ? id : null;
    });
  }
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

/** Longest text of an entry: the longest path fits. */
const mostCharacters = 4096;

/** PostgreSQL stores neither NUL nor half a surrogate pair. */
const storable = (text: string): string =>
  text.slice(0, mostCharacters).replaceAll("\0", "\u{FFFD}").toWellFormed();
