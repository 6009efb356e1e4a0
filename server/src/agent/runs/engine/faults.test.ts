/** Internal errors of a run: transient errors, permanent errors, and the effect of both on parallel calls. */
import { sql } from "kysely";
import { afterEach, expect, test } from "vitest";
import { agentHost, modelConfig } from "#agent/testing/agent-app.ts";
import { startModelServer } from "#agent/testing/model-server.ts";
import { startToolServer } from "#agent/testing/tool-server.ts";

const model = await startModelServer();
const tools = await startToolServer();
const host = await agentHost();
const owner = await host.person();
const tool = (name: string) => ({
  name,
  description: "Does it.",
  method: "GET",
  path: `/${name}`,
  parameters: { type: "object" },
});
const toolset = await owner.post("/v1/agent-toolsets", {
  name: "set",
  kind: "http",
  url: tools.url,
  http_tools: [tool("quick"), tool("slow")],
});
const config = { ...(await modelConfig(owner, model.url)), toolsets: [{ toolset_id: toolset.json.id }] };
await owner.post("/v1/agents", { name: "unlucky", config });

/**
 * Makes the first `times` statements of this kind fail with `code`. A sequence counts the failures, because no rollback
 * resets a sequence.
 */
async function failing(
  table: string,
  on: "insert" | "update",
  { code, times }: { code: string; times: number },
) {
  await sql`create sequence faults`.execute(host.app.db);
  await sql
    .raw(
      `create function fault() returns trigger language plpgsql as $$ begin
        if nextval('faults') <= ${times} then raise exception 'no' using errcode = '${code}'; end if;
        return new; end $$`,
    )
    .execute(host.app.db);
  const only = on === "update" ? "when (new.status = 'completed')" : "";
  await sql
    .raw(`create trigger fault before ${on} on ${table} for each row ${only} execute function fault()`)
    .execute(host.app.db);
}

afterEach(async () => {
  tools.answer = undefined;
  await sql`drop function if exists fault cascade`.execute(host.app.db);
  await sql`drop sequence if exists faults`.execute(host.app.db);
});

const invoke = async () => (await owner.post("/v1/agents/unlucky/invoke", { input: "Hi" })).json;
const runOf = async (id: string) => (await owner.get(`/v1/agents/runs/${id}`)).json;

test("retries a run from its last complete step after a transient database error", async () => {
  await failing("agent_steps", "insert", { code: "40P01", times: 2 });
  model.script([{ text: ["Done."] }]);
  const { run_id } = await invoke();
  expect(await runOf(run_id)).toMatchObject({ status: "completed", output: "Done.", attempts: 3, steps: 1 });
});

test("fails a run with a general message after a permanent internal error", async () => {
  await failing("agent_steps", "insert", { code: "23514", times: 100 });
  model.script([{ text: ["Done."] }]);
  const { run_id } = await invoke();
  expect(await runOf(run_id)).toMatchObject({
    status: "failed",
    error_code: "internal",
    error_message: expect.stringMatching(/^An internal error stopped the run\..*\/resume/),
    attempts: 1,
  });
});

test("aborts a tool call when a parallel call fails the run", async () => {
  await failing("agent_tool_calls", "update", { code: "23514", times: 100 });
  const asked = Promise.withResolvers<void>();
  const givenUp = Promise.withResolvers<void>();
  tools.answer = (path, response) => {
    if (path.endsWith("/slow")) {
      response.on("close", givenUp.resolve);
      asked.resolve();
    } else void asked.promise.then(() => response.writeHead(200).end("{}"));
  };
  model.script([{ calls: ["quick", "slow"].map((name) => ({ name: `set__${name}`, arguments: "{}" })) }]);
  expect(await invoke()).toMatchObject({ status: "failed", error_code: "internal" });
  // The tool's own timeout is minutes, so only the abort can end its call.
  await givenUp.promise;
});
