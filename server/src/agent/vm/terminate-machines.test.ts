/** Termination of sessions' machines. */
import { sql } from "kysely";
import { expect, test } from "vitest";
import { newId } from "#lib/ids.ts";
import { createSandbox } from "#sandbox/sandboxes/lifecycle/create.ts";
import { createInput, personWithTier, testHost } from "#sandbox/testing/sandbox-app.ts";
import { testDatabase } from "../../../test/harness.ts";
import { terminateOrphans, terminateMachine, terminateMachines } from "./terminate-machines.ts";

const { db } = await testDatabase();
const host = await testHost(db);
const { actor, workspace } = await personWithTier(db, "enterprise");

/** Creates a session with a sandbox as its machine. */
async function session(options: { isEnded?: boolean } = {}): Promise<{ id: string; sandbox: string }> {
  const [id, agent] = [newId("ses_"), newId("agt_")];
  const at = host.clock.now();
  await sql`insert into agents (id, workspace_id, name, latest_version, created_at, updated_at)
    values (${agent}, ${workspace.id}, ${agent}, 1, ${at}, ${at})`.execute(db);
  await sql`insert into agent_versions (agent_id, version, config, created_by, created_at)
    values (${agent}, 1, '{}', '{}', ${at})`.execute(db);
  await sql`insert into agent_sessions (id, agent_id, workspace_id, version, created_at, last_used_at, ended_at)
    values (${id}, ${agent}, ${workspace.id}, 1, ${at}, ${at}, ${options.isEnded ? at : null})`.execute(db);
  const { id: sandbox } = await createSandbox(host.app, actor, createInput());
  await sql`insert into agent_machines
    values (${id}, ${workspace.id}, ${sandbox}, 'awake', 300, ${at}, null)`.execute(db);
  return { id, sandbox };
}

const statusOf = async (sandbox: string) =>
  (await db.selectFrom("sandboxes").select("status").where("id", "=", sandbox).executeTakeFirst())?.status;
const jobs = async () =>
  (
    await sql<{ session: string }>`select payload ->> 'session' as session from graphile_worker._private_jobs
      where payload ->> 'session' is not null order by id`.execute(db)
  ).rows.map((row) => row.session);

test("terminates machines once when the transaction that ends their sessions commits", async () => {
  const [one, two] = [await session(), await session()];
  const rolledBack = db.transaction().execute(async (tx) => {
    await terminateMachines(tx, [one.id]);
    throw new Error("no");
  });
  await expect(rolledBack).rejects.toThrow("no");
  expect(await jobs()).toEqual([]);
  const all = [one.id, two.id, "ses_unknown"];
  expect(await db.transaction().execute((tx) => terminateMachines(tx, all))).toBe(2);
  expect(await db.transaction().execute((tx) => terminateMachines(tx, all))).toBe(0);
  expect((await jobs()).toSorted()).toEqual([one.id, two.id].toSorted());
  for (const { id, sandbox } of [one, two]) {
    await terminateMachine(host.app, id);
    expect(await statusOf(sandbox)).toBe("terminated");
    await terminateMachine(host.app, id);
  }
  expect(await sql`select from agent_machines`.execute(db)).toMatchObject({ rows: [] });
});

test("deletes only machines whose session ended or was deleted", async () => {
  const [lives, ended, gone] = [await session(), await session({ isEnded: true }), await session()];
  await sql`delete from agent_sessions where id = ${gone.id}`.execute(db);
  await terminateOrphans(host.app);
  expect(await Promise.all([lives, ended, gone].map(({ sandbox }) => statusOf(sandbox)))).toEqual([
    "running",
    "terminated",
    "terminated",
  ]);
  expect((await sql`select session_id from agent_machines`.execute(db)).rows).toEqual([
    { session_id: lives.id },
  ]);
});
