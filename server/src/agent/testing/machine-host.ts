/** Agent API with fake machines and a scripted model, and shortcuts for common steps. */
import { sql } from "kysely";
import { expect } from "vitest";
import { testHost, type TestHost } from "#sandbox/testing/sandbox-app.ts";
import { protocol } from "#sandbox/code/interpreter.ts";
import { done, playInterpreter } from "#sandbox/testing/interpreter.ts";
import { agentHost, type Json, modelConfig, type Person } from "./agent-app.ts";
import { startModelServer } from "./model-server.ts";

export const model = await startModelServer();
export let box!: TestHost;
/** Picture that the code interpreter of the fake machine draws. */
export const drawn = Buffer.from("\x89PNG\r\n\x1a\n", "latin1").toString("base64");
const interpreter = playInterpreter(async function* ({ code }) {
  yield { type: "stream", stream: "stdout", text: "out\n" };
  if (code === "boom") yield { type: "error", name: "ValueError", value: "no", traceback: [] };
  else if (code === "draw") yield { type: "result", text: "<Figure>", png: drawn };
  else yield { type: "result", text: code };
  yield done;
});
export const host = await agentHost({
  machines: async (db) => (box = await testHost(db, { services: { [protocol]: interpreter } })),
});
export const owner = await host.person();
export const config = await modelConfig(owner, model.url);
let made = 0;

interface ScriptedCall {
  name: string;
  values: Record<string, unknown>;
}

export const call = (name: string, values: Record<string, unknown>): ScriptedCall => ({ name, values });

/** Scripts a model that makes each of these calls in a step of its own, and then gives its final answer. */
export function script(...steps: ScriptedCall[][]): void {
  model.script([
    ...steps.map((calls) => ({
      calls: calls.map(({ name, values }) => ({ name, arguments: JSON.stringify(values) })),
    })),
    { text: ["Done."] },
  ]);
}

export async function agent(vm: object = {}, more: object = {}, person: Person = owner): Promise<string> {
  made += 1;
  const body = { name: `agent-${made}`, config: { ...config, vm, ...more } };
  const reply = await person.post("/v1/agents", body);
  expect(reply.status, JSON.stringify(reply.json)).toBe(201);
  return reply.json.name as string;
}

export const invoke = async (name: string, body: object = {}): Promise<Json> =>
  (await owner.post(`/v1/agents/${name}/invoke`, { input: "Hi", ...body })).json;

/** Returns the results of the tool calls in the model's last request. */
export const toolResults = (): string[] =>
  model.asked
    .at(-1)
    .messages.filter(({ role }: Json) => role === "tool")
    .map(({ content }: Json) => content);

export const machineOf = async (name: string, session: string): Promise<Json> =>
  (await owner.get(`/v1/agents/${name}/sessions/${session}`)).json.vm;
export const sandboxOf = (id: string) =>
  host.app.db.selectFrom("sandboxes").selectAll().where("id", "=", id).executeTakeFirstOrThrow();
export const sandboxes = async (session: string) =>
  (
    await sql<{ id: string; status: string }>`select id, status from sandboxes
      where metadata ->> 'agent_session' = ${session} order by created_at, id`.execute(host.app.db)
  ).rows;
/** Moves the last use of the session and its machine this many seconds into the past. */
export const wait = (session: string, seconds: number) =>
  Promise.all([
    sql`update agent_machines set last_used_at = last_used_at - make_interval(secs => ${seconds})
      where session_id = ${session}`.execute(host.app.db),
    sql`update agent_events set at = at - make_interval(secs => ${seconds}) from agent_runs as r
      where r.id = run_id and r.session_id = ${session}`.execute(host.app.db),
  ]);
