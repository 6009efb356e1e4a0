/** Machines of an erased end user. */
import { setTimeout as sleep } from "node:timers/promises";
import { sql } from "kysely";
import { expect, test } from "vitest";
import { accessLogOf } from "#accounts/activity/access-log.ts";
import { testHost } from "#sandbox/testing/sandbox-app.ts";
import { agentTasks } from "../jobs.ts";
import { agentHost, modelConfig } from "../testing/agent-app.ts";
import { startModelServer } from "../testing/model-server.ts";
import { rowsWith } from "../testing/whole-database.ts";

const model = await startModelServer();
const host = await agentHost({ machines: (db) => testHost(db) });
const { db } = host.app;
const owner = await host.person();

test("terminates the machines of an erased end user, and removes the end user from their activity and metadata", async () => {
  const config = { ...(await modelConfig(owner, model.url)), vm: {} };
  await owner.post("/v1/agents", { name: "builder", config });
  const live = async (word: string) => {
    const command = `echo ${word}`;
    model.script([
      { calls: [{ name: "exec", arguments: JSON.stringify({ command }) }] },
      { text: ["Done."] },
    ]);
    const { json } = await owner.post("/v1/agents/builder/invoke", { input: word, end_user_id: word });
    expect(JSON.stringify(model.asked.at(-1))).toContain(`stdout:\\n${word}`);
    const { vm } = (await owner.get(`/v1/agents/builder/sessions/${json.session_id}`)).json;
    return { words: [word, json.session_id, json.run_id], sandbox: vm.sandbox_id as string };
  };
  const ada = await live("canaryada");
  const bob = await live("canarybob");
  // Activity entries are written in the background: ada's entries before the erasure, eve's after the erasure.
  await accessLogOf(host.app).flush();
  const eve = await live("canaryeve");
  const bobBefore = await rowsWith(db, bob.words);
  const { json } = await owner.call("DELETE", "/v1/agents/builder/end-users/canaryada");
  expect(json).toMatchObject({ sessions: 1, vms_destroyed: 1 });
  await owner.call("DELETE", "/v1/agents/builder/end-users/canaryeve");
  await accessLogOf(host.app).flush();
  await host.app.jobs.startWorker(agentTasks(host.app));
  const countJobs = async () =>
    (await sql`select from graphile_worker._private_jobs where payload ->> 'session' is not null`.execute(db))
      .rows.length;
  while ((await countJobs()) > 0) await sleep(20);
  expect(await rowsWith(db, [...ada.words, ...eve.words])).toEqual(new Map());
  const commands = await db
    .selectFrom("activity")
    .select(["target_id", "detail"])
    .where("action", "=", "command.executed")
    .execute();
  expect(new Map(commands.map((row) => [row.target_id, Object.keys(row.detail)]))).toEqual(
    new Map([
      [ada.sandbox, []],
      [bob.sandbox, ["run_id", "call_id"]],
      [eve.sandbox, []],
    ]),
  );
  const rows = await db
    .selectFrom("sandboxes")
    .select(["id", "status", "metadata"])
    .where("id", "in", [ada.sandbox, bob.sandbox])
    .execute();
  const { id } = (await owner.get("/v1/agents/builder")).json;
  expect(new Map(rows.map((row) => [row.id, [row.status, row.metadata]]))).toEqual(
    new Map([
      [ada.sandbox, ["terminated", { agent: id }]],
      [bob.sandbox, ["running", { agent: id, agent_session: bob.words[1] }]],
    ]),
  );
  expect(await rowsWith(db, bob.words)).toEqual(bobBefore);
});
