import { sql } from "kysely";
import { expect, test, vi } from "vitest";
import { testDatabase } from "../../test/harness.ts";
import { becomeSoleServer } from "./sole-server.ts";

const { connection, db } = await testDatabase();
const never = () => {
  throw new Error("nobody takes it");
};

test("refuses a second server on the same host until the first ends, but not on another host", async () => {
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
  await sql`select pg_terminate_backend(pid) from pg_locks join pg_database on oid = database
    where locktype = 'advisory' and datname = current_database() and pid <> pg_backend_pid()`.execute(db);
}

test("acquires the lock again after its connection breaks", async () => {
  const first = await becomeSoleServer(connection, "host_c", never);
  await cutConnections();
  await vi.waitFor(async () => expect(await becomeSoleServer(connection, "host_c", never)).toBeUndefined());
  await first?.release();
});
