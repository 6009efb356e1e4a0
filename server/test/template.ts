/** The migrated template database. Each test database is a copy of it. */
import pg from "pg";
import { clientOptions, type Connection } from "#db/db.ts";
import { migrate } from "#db/migrate.ts";

export const templateDatabase = "template_kontor";

/** Makes the template database. `connection` names any database of the cluster. */
export async function makeTemplate(connection: Connection): Promise<void> {
  if (!("socketDirectory" in connection)) throw new Error("tests run on a socket");
  await query(connection, `create database ${templateDatabase}`);
  await migrate({ ...connection, database: templateDatabase });
}

export async function query(connection: Connection, text: string): Promise<void> {
  const client = new pg.Client(clientOptions(connection));
  await client.connect();
  try {
    await client.query(text);
  } finally {
    await client.end();
  }
}
