/**
 * The connection to PostgreSQL. The tables are a type parameter; `#schema.ts` names them.
 *
 * This module decides how values are read. `bigint` becomes a number, and a value above 2^53 is an error instead of a
 * wrong number. `timestamptz` becomes a Date, `numeric` stays text, and `json` is parsed. A JSON value is written as
 * text (`JSON.stringify`), because pg would send an array as a PostgreSQL array.
 */
import { Kysely, PostgresDialect, type Transaction } from "kysely";
import pg from "pg";
import { preparingClient } from "./prepared-statements.ts";

/** Location of PostgreSQL: a `postgres://` URL, or the socket directory of the embedded one. */
export type Connection = { url: string } | { socketDirectory: string; user: string; database: string };

export interface OpenDatabase<Schema> {
  db: Kysely<Schema>;
  /**
   * Separate connections for heartbeats, leases and deadlines, which must continue while requests use all other
   * connections.
   */
  upkeep: Kysely<Schema>;
  /** The connections of requests and jobs; graphile-worker uses them too. */
  pool: pg.Pool;
  close(): Promise<void>;
}

const upkeepConnections = 4;

/**
 * Opens a pool of at most `maxConnections`, and a small pool for upkeep. `onError` gets the errors of idle connections;
 * the pool replaces such connections.
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
      // An exhausted pool rejects requests instead of delaying them forever.
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
 * Handles the errors of broken connections, for example after a restart of PostgreSQL. Without listeners, these errors
 * would end the whole process. The query of a connection in use rejects too, so its caller learns about the error.
 */
export function survivePoolErrors(pool: pg.Pool, onError: (error: Error) => void): void {
  pool.on("error", onError);
  pool.on("connect", (client) => client.on("error", () => {}));
}

/** Options of a `pg` client for the same database, with the same parsing of values. */
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

// pg types the parser's input by its format; only the text format is used here.
const getTypeParser: NonNullable<pg.CustomTypesConfig["getTypeParser"]> = ((oid: number, format?: "text") =>
  oid === int8 ? parseBigint : pg.types.getTypeParser(oid, format)) as never;

function parseBigint(text: string): number {
  const value = Number(text);
  if (!Number.isSafeInteger(value))
    throw new RangeError(`${text} is larger than the largest number that JavaScript holds exactly`);
  return value;
}
