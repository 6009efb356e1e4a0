import { sql } from "kysely";
import { expect, test, vi } from "vitest";
import { testDatabase } from "../../test/harness.ts";
import { becomeSoleServer } from "./sole-server.ts";

const { connection, db } = await testDatabase();
const never = () => {
  throw new Error("nobody takes it");
};

test("a second server on the same host is turned away until the first is gone; another host is not", async () => {
  const first = await becomeSoleServer(connection, "host_a", never);
  expect(await becomeSoleServer(connection, "host_a", never)).toBeUndefined();
  const other = await becomeSoleServer(connection, "host_b", never);
  expect(other).toBeDefined();
  await first?.release();
  const second = await becomeSoleServer(connection, "host_a", never);
  expect(second).toBeDefined();
  await second?.release();
  await other?.release();
});

async function cutConnections(): Promise<void> {
  await sql`select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and pid <> pg_backend_pid()`.execute(
    db,
  );
}

test("a server whose connection breaks takes its place again", async () => {
  const first = await becomeSoleServer(connection, "host_c", never);
  await cutConnections();
  await vi.waitFor(async () => expect(await becomeSoleServer(connection, "host_c", never)).toBeUndefined());
  await first?.release();
});
