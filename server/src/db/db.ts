/**
 * The connection to PostgreSQL. The tables are a type parameter; `#schema.ts` names them.
 *
 * This module decides how values are read: `bigint` is a number, and a value past 2^53 is an error instead of a wrong
 * number; `timestamptz` is a Date; `numeric` stays text; `json` is parsed. A JSON value is written as text
 * (`JSON.stringify`), because pg would send an array as a PostgreSQL array.
 */
import { Kysely, PostgresDialect, type Transaction } from "kysely";
import pg from "pg";
import { preparingClient } from "./prepared-statements.ts";

/** Where PostgreSQL is: a `postgres://` address, or the socket directory of the embedded one. */
export type Connection = { url: string } | { socketDirectory: string; user: string; database: string };

export interface OpenDatabase<Schema> {
  db: Kysely<Schema>;
  /** Separate connections for heartbeats, leases and deadlines, which must continue while requests hold all others. */
  upkeep: Kysely<Schema>;
  /** For graphile-worker, which shares it. */
  pool: pg.Pool;
  close(): Promise<void>;
}

const upkeepConnections = 4;

/**
 * Opens a pool of at most `maxConnections`, and a small one for upkeep. `onError` is called for idle connections that
 * broke; the pool replaces them.
 */
export function openDatabase<Schema>(
  connection: Connection,
  options: { maxConnections: number; onError: (error: Error) => void },
): OpenDatabase<Schema> {
  const open = (max: number) => {
    const pool = new pg.Pool({
      ...clientOptions(connection),
      Client: preparingClient(),
      max,
      // An exhausted pool rejects requests instead of delaying them for ever.
      connectionTimeoutMillis: 10_000,
    });
    survivePoolErrors(pool, options.onError);
    return { pool, db: new Kysely<Schema>({ dialect: new PostgresDialect({ pool }) }) };
  };
  const { pool, db } = open(options.maxConnections);
  const upkeep = open(upkeepConnections).db;
  const close = async () => {
    await Promise.all([db.destroy(), upkeep.destroy()]);
  };
  return { db, upkeep, pool, close };
}

/**
 * Without listeners a connection that breaks (a restart of PostgreSQL) ends the whole process: an idle one through
 * the pool, one in use through the client, whose query fails as well and says the same to whoever asked.
 */
export function survivePoolErrors(pool: pg.Pool, onError: (error: Error) => void): void {
  pool.on("error", onError);
  pool.on("connect", (client) => client.on("error", () => {}));
}

/** Options of one `pg` client to the same place, with the same reading of values. */
export function clientOptions(connection: Connection): pg.ClientConfig {
  const place =
    "url" in connection
      ? { connectionString: connection.url }
      : { host: connection.socketDirectory, user: connection.user, database: connection.database };
  return { ...place, application_name: "kontor", types: { getTypeParser } };
}

/** Runs `work` in a transaction. If `db` is a transaction already, `work` joins it. */
export function transaction<Schema, T>(
  db: Kysely<Schema>,
  work: (tx: Transaction<Schema>) => Promise<T>,
): Promise<T> {
  return db.isTransaction ? work(db as Transaction<Schema>) : db.transaction().execute(work);
}

const int8 = pg.types.builtins.INT8;

// pg's own type says the parser's format decides its input; only the text format is ever used here.
const getTypeParser: NonNullable<pg.CustomTypesConfig["getTypeParser"]> = ((oid: number, format?: "text") =>
  oid === int8 ? parseBigint : pg.types.getTypeParser(oid, format)) as never;

function parseBigint(text: string): number {
  const value = Number(text);
  if (!Number.isSafeInteger(value)) throw new RangeError(`${text} is past what a number holds exactly`);
  return value;
}
