import pg from "pg";
import { clientOptions, type Connection } from "./db.ts";

/** Runs `work` on a connection of its own, outside the pool, and closes it. Rejects if none opens within 10 s. */
export async function withClient<T>(
  connection: Connection,
  work: (client: pg.Client) => Promise<T>,
): Promise<T> {
  const client = new pg.Client({ ...clientOptions(connection), connectionTimeoutMillis: 10_000 });
  // A connection that breaks rejects its query as well; without a listener it would end the process.
  client.on("error", () => {});
  try {
    await client.connect();
    return await work(client);
  } finally {
    await client.end().catch(() => {});
  }
}
