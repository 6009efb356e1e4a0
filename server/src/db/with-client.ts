import pg from "pg";
import { clientOptions, type Connection } from "./db.ts";

/**
 * Runs `work` on its own connection outside the pool, and closes it. Rejects if the connection does not open within 10
 * s.
 */
export async function withClient<T>(
  connection: Connection,
  work: (client: pg.Client) => Promise<T>,
): Promise<T> {
  const client = new pg.Client({ ...clientOptions(connection), connectionTimeoutMillis: 10_000 });
  // A broken connection also rejects its query. Without this listener it would end the process.
  client.on("error", () => {});
  try {
    await client.connect();
    return await work(client);
  } finally {
    await client.end().catch(() => {});
  }
}
