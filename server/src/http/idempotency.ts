/**
 * Returns the first response again to a client that retries with the same `Idempotency-Key`. A key's row is inserted as
 * `running` before the handler starts, and gets the response when the handler ends. While a request runs, its process
 * extends `expires_at` of the row. After a crash the extensions stop, and within 30 seconds a retry can take over the
 * key.
 *
 * The transaction that creates a resource also records the resource in the key's row. If no response was stored,
 * because the server crashed or the handler failed, a retry finds this record and creates nothing twice.
 */
import { createHash, randomUUID } from "node:crypto";
import { type Kysely, sql } from "kysely";
import type { Logger } from "pino";
import type { Database, Db } from "#schema.ts";
import type { Clock } from "#lib/clock.ts";
import { idempotencyConflict, idempotencyInProgress } from "./errors.ts";
import { InvalidInput } from "./input/input-problems.ts";

/** Retention of responses. */
const keptMs = 24 * 3600_000;
/** Lease of a process on its rows: three intervals of `beatMs`. */
const leaseMs = 30_000;
const beatMs = 10_000;
const sweepMs = 600_000;
export interface KeyedRequest {
  /** Token id, or `user:` and the user id. */
  caller: string;
  route: string;
  key: string;
  /** Hash over path, query and body together: the same key on another sandbox is another request. */
  bodyHash: string;
}

export interface StoredResponse {
  status: number;
  headers: Readonly<Record<string, string>>;
  /** JSON text of the body. Null without a body. */
  text: string | null;
}

/** Resource that a request created: its id, and other fields that its response is rendered from. Holds no secret. */
export type CreatedResource = Readonly<Record<string, unknown>>;

/** Outcome of the first request: its stored response, or the resources it created without a stored response. */
export type Outcome = { answer: StoredResponse } | { made: readonly CreatedResource[] };

/** Returns the header's value. Undefined if it was not sent. */
export function parseIdempotencyKey(header: string | string[] | undefined): string | undefined {
  if (header === undefined) return undefined;
  if (typeof header === "string" && /^[\x20-\x7e]{1,128}$/.test(header)) return header;
  const plain = "must be 1 to 128 printable ASCII characters";
  throw new InvalidInput([
    {
      place: "header",
      path: ["idempotency-key"],
      type: "value_error",
      message: `Value error, ${plain}`,
      plain,
    },
  ]);
}

/** Objects that differ only in the order of their keys hash the same. */
export function hashRequest(input: unknown): string {
  const sorted = JSON.stringify(input, (_, value: unknown) =>
    typeof value === "object" && value !== null && !Array.isArray(value)
      ? Object.fromEntries(Object.entries(value).toSorted(([a], [b]) => (a < b ? -1 : 1)))
      : value,
  );
  return createHash("sha256")
    .update(sorted ?? "")
    .digest("hex");
}

export class IdempotencyKeys {
  readonly #db: Kysely<Database>;
  readonly #clock: Clock;
  readonly #log: Pick<Logger, "error">;
  readonly #process = randomUUID();
  readonly #timers: NodeJS.Timeout[];
  /** Requests that this process runs. These count as running even if their lease was extended too late. */
  readonly #running = new Map<string, KeyedRequest>();

  constructor(db: Kysely<Database>, clock: Clock, log: Pick<Logger, "error">) {
    this.#db = db;
    this.#clock = clock;
    this.#log = log;
    this.#timers = [
      setInterval(() => void this.#extendLeases(), beatMs),
      setInterval(() => void this.#pruneExpired(), sweepMs),
    ];
    for (const timer of this.#timers) timer.unref();
  }

  /**
   * Returns the first request's outcome. Undefined means that this request is the first; the caller must finish or
   * release the request. With `isBeside`, the call also returns a result while the first request still runs.
   */
  async begin(request: KeyedRequest, isBeside = false): Promise<Outcome | undefined> {
    if (this.#running.has(nameOf(request))) return this.#stored(request, isBeside);
    const now = this.#clock.now();
    const taken = await this.#db
      .insertInto("idempotency_keys")
      .values({
        caller: request.caller,
        route: request.route,
        key: request.key,
        body_hash: request.bodyHash,
        state: "running",
        created_at: now,
        process_id: this.#process,
        expires_at: new Date(now.getTime() + leaseMs),
      })
      .onConflict((conflict) =>
        conflict
          .columns(["caller", "route", "key"])
          .doUpdateSet((row) => ({
            body_hash: row.ref("excluded.body_hash"),
            state: "running" as const,
            status: null,
            headers: null,
            body: null,
            made: null,
            created_at: row.ref("excluded.created_at"),
            process_id: row.ref("excluded.process_id"),
            expires_at: row.ref("excluded.expires_at"),
          }))
          .where(isExpired(now)),
      )
      .returning("key")
      .executeTakeFirst();
    if (!taken) return this.#stored(request, isBeside);
    this.#running.set(nameOf(request), request);
    return undefined;
  }

  async #stored(request: KeyedRequest, isBeside: boolean): Promise<Outcome> {
    const row = await this.#row(request).selectAll().executeTakeFirst();
    // The first request failed and was released between the two statements.
    if (!row) throw idempotencyInProgress();
    if (row.body_hash !== request.bodyHash) throw idempotencyConflict();
    if (row.state === "done" && row.status !== null)
      return {
        answer: { status: row.status, headers: row.headers ?? {}, text: row.body as string | null },
      };
    const isRunning =
      row.state === "running" &&
      (row.expires_at >= this.#clock.now() ||
        (row.process_id === this.#process && this.#running.has(nameOf(request))));
    if (row.made === null || (isRunning && !isBeside)) throw idempotencyInProgress();
    return { made: row.made };
  }

  /**
   * Records a created resource in the transaction that creates it, once for each resource. Throws if another process
   * took over the key; the error rolls the transaction back.
   */
  async note(tx: Db, request: KeyedRequest, made: CreatedResource): Promise<void> {
    const noted = await this.#own(request, tx)
      .set({
        made: sql`coalesce(made, '[]') || jsonb_build_array(${JSON.stringify(made)}::jsonb)`,
      })
      .returning("key")
      .executeTakeFirst();
    if (!noted) throw idempotencyInProgress();
  }

  /** Restarts a request that left no usable resource. Only one of several concurrent retries succeeds. */
  async restart(request: KeyedRequest): Promise<void> {
    const now = this.#clock.now();
    const taken = await this.#db
      .updateTable("idempotency_keys")
      .set({
        state: "running",
        made: null,
        created_at: now,
        process_id: this.#process,
        expires_at: new Date(now.getTime() + leaseMs),
      })
      .where("caller", "=", request.caller)
      .where("route", "=", request.route)
      .where("key", "=", request.key)
      .where("made", "is not", null)
      .where((eb) =>
        eb.or([eb("state", "=", "made"), eb.and([eb("state", "=", "running"), eb("expires_at", "<", now)])]),
      )
      .returning("key")
      .executeTakeFirst();
    if (!taken) throw idempotencyInProgress();
    this.#running.set(nameOf(request), request);
  }

  /**
   * Stores the response as JSON text in a JSON string, because jsonb stores no NUL, and a program's output may hold
   * NUL.
   */
  async finish(request: KeyedRequest, answer: StoredResponse): Promise<void> {
    await this.#own(request)
      .set({
        state: "done",
        status: answer.status,
        headers: JSON.stringify(answer.headers),
        body: answer.text === null ? null : JSON.stringify(answer.text),
        expires_at: new Date(this.#clock.now().getTime() + keptMs),
      })
      .execute()
      .catch((error: unknown) =>
        this.#log.error({ error }, "could not store the response of an idempotent request"),
      );
    this.#running.delete(nameOf(request));
  }

  /**
   * Releases a request whose response is not worth repeating. The next request with the key runs as the first. Recorded
   * resources stay.
   */
  async release(request: KeyedRequest): Promise<void> {
    await this.#release(request).catch((error: unknown) =>
      this.#log.error({ error }, "could not release an idempotency key"),
    );
    this.#running.delete(nameOf(request));
  }

  async #release(request: KeyedRequest): Promise<void> {
    const expiresAt = new Date(this.#clock.now().getTime() + keptMs);
    await this.#own(request)
      .where("made", "is not", null)
      .set({ state: "made", expires_at: expiresAt })
      .execute();
    await this.#db
      .deleteFrom("idempotency_keys")
      .where("caller", "=", request.caller)
      .where("route", "=", request.route)
      .where("key", "=", request.key)
      .where("process_id", "=", this.#process)
      .where("state", "=", "running")
      .execute();
  }

  close(): void {
    for (const timer of this.#timers) clearInterval(timer);
  }

  #row({ caller, route, key }: KeyedRequest) {
    return this.#db
      .selectFrom("idempotency_keys")
      .where("caller", "=", caller)
      .where("route", "=", route)
      .where("key", "=", key);
  }

  #own({ caller, route, key }: KeyedRequest, db: Db = this.#db) {
    return db
      .updateTable("idempotency_keys")
      .where("caller", "=", caller)
      .where("route", "=", route)
      .where("key", "=", key)
      .where("process_id", "=", this.#process)
      .where("state", "=", "running");
  }

  async #extendLeases(): Promise<void> {
    if (this.#running.size === 0) return;
    const running = [...this.#running.values()];
    const column = (name: "caller" | "route" | "key") => sql.val(running.map((request) => request[name]));
    // Extends only requests that this process runs, so the lease of a row whose end was not stored expires. A
    // transaction that recorded a resource locks its row. Waiting for the lock could delay others, so the next
    // heartbeat extends such a row.
    await sql`update idempotency_keys set expires_at = ${new Date(this.#clock.now().getTime() + leaseMs)}
      from (select caller, route, key from idempotency_keys
        where process_id = ${this.#process} and state = 'running' and (caller, route, key) in
          (select * from unnest(${column("caller")}::text[], ${column("route")}::text[], ${column("key")}::text[]))
        for update skip locked) as own
      where (idempotency_keys.caller, idempotency_keys.route, idempotency_keys.key)
        = (own.caller, own.route, own.key)`
      .execute(this.#db)
      .catch((error: unknown) => this.#log.error({ error }, "could not extend idempotency leases"));
  }

  async #pruneExpired(): Promise<void> {
    await this.#db
      .deleteFrom("idempotency_keys")
      .where(isExpired(this.#clock.now()))
      .execute()
      .catch((error: unknown) => this.#log.error({ error }, "could not prune old idempotency keys"));
  }
}

const nameOf = ({ caller, route, key }: KeyedRequest): string => JSON.stringify([caller, route, key]);

/** True for rows that no retry can use any more. A request that recorded a resource expires by its start time. */
const isExpired = (now: Date) =>
  sql<boolean>`(idempotency_keys.expires_at < ${now} and (idempotency_keys.state <> 'running'
    or idempotency_keys.made is null
    or idempotency_keys.created_at < ${new Date(now.getTime() - keptMs)}))`;

/**
 * Deletes stored responses of runs whose texts must be deleted: responses hold the run ids, and keys may hold a
 * caller's text.
 */
export async function deleteStoredResponses(tx: Db, route: string, runIds: readonly string[]): Promise<void> {
  const ids = sql`any(${sql.val([...runIds])}::text[])`;
  // The query reads bodies as text, because jsonb accepts no NUL and a response may hold one.
  await sql`delete from idempotency_keys where route = ${route}
    and (made -> 0 ->> 'run_id' = ${ids} or substring(body #>> '{}' from '"run_id":"([^"]+)"') = ${ids})`.execute(
    tx,
  );
}
