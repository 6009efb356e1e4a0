/** Erasure of an end user while other transactions delete the same connections. */
import { sql } from "kysely";
import { expect, test } from "vitest";
import { agentHost, modelConfig } from "../testing/agent-app.ts";

const host = await agentHost({ isIdle: true });
const { db } = host.app;
const owner = await host.person();

const toolsets: string[] = [];
for (const name of ["one", "two", "three"]) {
  const { json } = await owner.post("/v1/agent-toolsets", {
    name,
    kind: "http",
    url: "http://127.0.0.1:9/",
    auth_type: "oauth",
    oauth_per_end_user: true,
    http_tools: [],
  });
  toolsets.push(json.id);
}
const uses = toolsets.map((toolset_id) => ({ toolset_id }));
for (const [name, toolsets] of [
  ["clerk", uses],
  ["porter", uses.toReversed()],
] as const) {
  const config = { ...(await modelConfig(owner)), toolsets };
  await owner.post("/v1/agents", { name, config });
}

const erase = (agent: string, who: string) => owner.call("DELETE", `/v1/agents/${agent}/end-users/${who}`);
const disconnect = (id: string, who: string) =>
  owner.call("DELETE", `/v1/agent-toolsets/${id}/connections/${who}`);

async function began(id: string, who: string, nonce: string): Promise<void> {
  await sql`insert into agent_connect_links (nonce_hash, toolset_id, end_user_id, created_at, expires_at)
    values (sha256(${nonce}::bytea), ${id}, ${who}, now(), now() + interval '1 hour')`.execute(db);
}

/** Opens a transaction, executes the statement and keeps the transaction open until `end()`. */
async function holding(
  statement: ReturnType<typeof sql>,
): Promise<{ pid: number; end: () => Promise<void> }> {
  const may = Promise.withResolvers<void>();
  const held = Promise.withResolvers<number>();
  const over = db.transaction().execute(async (tx) => {
    await statement.execute(tx);
    const { rows } = await sql<{ pid: number }>`select pg_backend_pid() as pid`.execute(tx);
    held.resolve(rows[0]!.pid);
    await may.promise;
  });
  return {
    pid: await held.promise,
    end: () => {
      may.resolve();
      return over;
    },
  };
}

const waiting = async (pid?: number) => {
  const { rows } = await sql<{ by: number[] }>`select pg_blocking_pids(pid) as by from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock'`.execute(db);
  return rows.filter(({ by }) => pid === undefined || by.includes(pid)).length;
};

test("a disconnect waits for a concurrent erasure, whichever sign-in link each of them locks first", async () => {
  const [a, b] = toolsets as [string, string];
  for (const [id, nonce] of [
    [a, "first"],
    [b, "between"],
    [a, "last"],
  ] as const)
    await began(id, "ada", nonce);
  // The update moves a row behind the others, for scans that start later. The erasure started earlier and reads the
  // rows in the old order.
  const moving = await holding(
    sql`update agent_connect_links set state_hash = 'moved' where nonce_hash = sha256('first')`,
  );
  const stopping = await holding(
    sql`select from agent_connect_links where nonce_hash = sha256('between') for update`,
  );
  const erased = erase("clerk", "ada");
  await expect.poll(() => waiting(moving.pid)).toBe(1);
  await moving.end();
  await expect.poll(() => waiting(stopping.pid)).toBe(1);
  const disconnected = disconnect(a, "ada");
  await expect.poll(() => waiting()).toBe(2);
  await stopping.end();
  expect([(await erased).status, (await disconnected).status]).toEqual([200, 404]);
});

test("concurrent erasures and disconnects delete every connection, and respond only with 200, 204 or 404", async () => {
  for (let round = 0; round < 30; round += 1) {
    const who = `bob${round}`;
    for (const id of toolsets) {
      await sql`insert into agent_connections (id, toolset_id, end_user_id, connected_at, sealed, provider)
        values (${`con_${id}_${who}`}, ${id}, ${who}, now(), '\\x00', '{}')`.execute(db);
      for (const nonce of ["x", "y", "z"]) await began(id, who, `${id} ${who} ${nonce}`);
    }
    const all = await Promise.all([
      erase("clerk", who),
      ...toolsets.map((id) => disconnect(id, who)),
      erase("porter", who),
      ...toolsets.toReversed().map((id) => disconnect(id, who)),
    ]);
    expect(all.map(({ status }) => status).filter((status) => ![200, 204, 404].includes(status))).toEqual([]);
    expect(all.filter(({ status }) => status === 200)).toHaveLength(2);
  }
  const left = sql`select from agent_connections union all select from agent_connect_links`;
  expect((await left.execute(db)).rows).toEqual([]);
});
