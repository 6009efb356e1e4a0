/**
 * Agent runs against a scripted model without latency, on a separate server without rate limits. Measures the overhead
 * of a run beyond its model and tools, the runs per second, and the latency of a run's stream.
 *
 * For comparison, the same model and tool run in a bare loop of the AI SDK (no server, no journal, no storage) and in
 * LangGraph's development server.
 */
import { createServer, type Server as HttpServer } from "node:http";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { jsonSchema, stepCountIs, streamText, tool } from "ai";
import type { Server } from "../../e2e/support/server.ts";
import { makeParts } from "../support/agent-parts.ts";
import type { Api } from "../support/api.ts";
import type { BenchContext } from "../support/contract.ts";
import { startLangGraph } from "../rivals/langgraph.ts";
import { percentile, measureTime } from "../support/measure.ts";
import { withOwnServer, withoutPool } from "../support/own-server.ts";
import { type ModelRequest, type ScriptedModel, startScriptedModel } from "../support/scripted-model.ts";

export const name = "agents";

const invokes = 200;
const throughputRuns = 600;
/** Number of concurrent runs, below the plan's limit. */
const atOnce = 32;
const tokens = 60;
const events = 1_000;

interface Scene {
  context: BenchContext;
  server: Server;
  api: Api;
  model: ScriptedModel;
  tools: ToolServer;
}

export async function run(context: BenchContext): Promise<void> {
  const model = await startScriptedModel();
  const tools = await startTools();
  const env = { ...withoutPool, KONTOR_ALLOW_PRIVATE_HOSTS: "127.0.0.0/8", KONTOR_RATE_LIMITS: "off" };
  try {
    await withOwnServer(context, env, async (server, api) => {
      const scene = { context, server, api, model, tools };
      await makeAgents(scene);
      await invokeToModel(scene);
      await perStep(scene);
      await throughput(scene);
      await tokenToClient(scene);
      await resume(scene);
    });
  } finally {
    model.close();
    tools.close();
  }
}

async function makeAgents({ api, model: { url: modelUrl }, tools: { url: toolsUrl } }: Scene): Promise<void> {
  const tool = { name: "look", method: "GET" } as const;
  const { model, toolset_id } = await makeParts(api, { modelUrl, toolsUrl, tool });
  await api.json("POST", "/v1/agents", 201, { name: "plain", config: { model } });
  const config = { model, toolsets: [{ toolset_id }] };
  await api.json("POST", "/v1/agents", 201, { name: "clerk", config });
}

interface Outcome {
  run_id: string;
  session_id: string;
  status: string;
}

/** Executes a run in its own session, and ends the session, because a plan limits live sessions. */
async function ask(api: Api, agent: string): Promise<Outcome> {
  const outcome = await api.json<Outcome>("POST", `/v1/agents/${agent}/invoke`, 200, { input: "Go." });
  if (outcome.status !== "completed") throw new Error(JSON.stringify(outcome));
  return outcome;
}

async function end(api: Api, agent: string, { session_id }: Outcome): Promise<void> {
  const { status } = await api.send("DELETE", `/v1/agents/${agent}/sessions/${session_id}`);
  if (status >= 300) throw new Error(`DELETE session: ${status}`);
}

async function invokeToModel({ context, api, model }: Scene): Promise<void> {
  context.progress("invoke → model called");
  const samples: number[] = [];
  model.answer = () => ({ text: ["Hello."] });
  for (let n = 0; n < invokes + 20; n += 1) {
    model.asked = [];
    const sentMs = performance.now();
    const outcome = await ask(api, "plain");
    if (n >= 20) samples.push(model.asked[0]!.heardMs - sentMs);
    await end(api, "plain", outcome);
  }
  const note = `n=${invokes}, one at a time, new session each`;
  const what = "invoke → model called";
  const [p50, p99] = [percentile(samples, 50), percentile(samples, 99)];
  context.report({ what: `${what}, p50`, value: p50, unit: "ms", samples, bar: { atMost: 15 }, note });
  context.report({ what: `${what}, p99`, value: p99, unit: "ms", bar: { atMost: 60 } });
}

const calls = 10;

/**
 * Measures the overhead of a step. A call of the tool and two steps of the journal lie between one response of the
 * model and its next request.
 */
async function perStep({ context, api, model, tools }: Scene): Promise<void> {
  context.progress("overhead per step");
  const samples: number[] = [];
  for (let n = 0; n < 20; n += 1) {
    model.asked = [];
    tools.tookMs = [];
    model.answer = ({ messages }) =>
      messages.filter(({ role }: { role: string }) => role === "tool").length < calls ? callTool : done;
    await end(api, "clerk", await ask(api, "clerk"));
    const gaps = between(model.asked);
    if (n > 1) samples.push(...gaps.map((gap, index) => (gap - (tools.tookMs[index] ?? 0)) / 2));
  }
  context.report({
    what: "overhead of a step beyond model and tool, p50",
    value: percentile(samples, 50),
    unit: "ms",
    samples,
    bar: { atMost: 10 },
    note: `n=${samples.length}, half of what lies between two calls of the model with one of a tool between`,
  });
}

function between(asked: readonly ModelRequest[]): number[] {
  return asked.slice(1).map(({ heardMs }, index) => heardMs - asked[index]!.answeredMs);
}

const callTool = { call: { name: "desk__look", arguments: "{}" } };
const done = { text: ["Done."] };

/** Model that requests a tool call, and then returns a text. */
const twoSteps: ScriptedModel["answer"] = ({ messages }) =>
  messages.at(-1).role === "tool" ? done : callTool;

async function throughput({ context, api, model, tools }: Scene): Promise<void> {
  context.progress("runs per second");
  model.answer = twoSteps;
  const ours = await perSecond(async () => end(api, "clerk", await ask(api, "clerk")));
  context.report({
    what: "runs per second, two steps and a tool",
    value: ours,
    unit: "runs/s",
    bar: { atLeast: 60 },
    note: `${throughputRuns} runs, ${atOnce} at once, new session each, ended after; model, tool and client on the same two cores`,
  });
  const provider = createOpenAICompatible({ name: "scripted", baseURL: model.url, apiKey: "none" });
  const look = tool({
    description: "Looks.",
    inputSchema: jsonSchema({ type: "object", properties: {} }),
    execute: async () => (await fetch(`${tools.url}/look`)).text(),
  });
  const bare = await perSecond(async () => {
    const told = streamText({
      model: provider("scripted"),
      prompt: "Go.",
      tools: { desk__look: look },
      stopWhen: stepCountIs(3),
    });
    if ((await told.text) !== "Done.") throw new Error("the bare loop was not answered");
  });
  context.report({ what: "the same by a bare loop of the AI SDK", value: bare, unit: "runs/s" });
  await beside({ context, model, tools });
}

async function beside({ context, model, tools }: Pick<Scene, "context" | "model" | "tools">): Promise<void> {
  context.progress("LangGraph's server");
  const rival = await startLangGraph({ model: model.url, tools: tools.url, atOnce }).catch(
    (error: unknown) => {
      context.progress(`LangGraph's server is left out: ${(error as Error).message.slice(0, 200)}`);
    },
  );
  if (!rival) return;
  try {
    const theirs = await perSecond(() => rival.run());
    context.report({
      what: "the same by LangGraph's development server",
      value: theirs,
      unit: "runs/s",
      note: "it keeps what it knows in memory",
    });
  } finally {
    rival.close();
  }
}

async function perSecond(work: () => Promise<void>): Promise<number> {
  let left = throughputRuns;
  const { ms } = await measureTime(() =>
    Promise.all(
      Array.from({ length: atOnce }, async () => {
        while (left > 0) {
          left -= 1;
          await work();
        }
      }),
    ).then(() => {}),
  );
  return throughputRuns / (ms / 1000);
}

async function tokenToClient({ context, server, model }: Scene): Promise<void> {
  context.progress("token → client");
  const sentMs = new Map<string, number>();
  const samples: number[] = [];
  model.onPiece = (text) => sentMs.set(text, performance.now());
  // The delay exceeds the 50 ms for which pieces are grouped, so each piece arrives alone.
  model.answer = () => ({ text: Array.from({ length: tokens }, (_, index) => `<${index}>`), delayMs: 80 });
  await follow(server, "plain", (frame) => {
    if (frame.type !== "message.delta") return;
    const since = sentMs.get(String(frame.delta));
    if (since !== undefined) samples.push(performance.now() - since);
  });
  model.onPiece = undefined;
  context.report({
    what: "a model's token → client over SSE, p50",
    value: percentile(samples, 50),
    unit: "ms",
    samples,
    bar: { atMost: 10 },
    note: `n=${samples.length}, tokens 80 ms apart: none waits for a group`,
  });
}

interface Frame {
  type: string;
  seq: number;
  run_id: string;
  delta?: string;
}

/** Invokes the agent with `stream: true` and reads the stream to its end. */
async function follow(server: Server, agent: string, hear: (frame: Frame) => void): Promise<string> {
  let runId = "";
  const response = await fetch(`${server.baseUrl}/v1/agents/${agent}/invoke`, {
    method: "POST",
    headers: { authorization: `Bearer ${server.token}`, "content-type": "application/json" },
    body: JSON.stringify({ input: "Go.", stream: true }),
  });
  for await (const frame of framesOf(response)) {
    runId = frame.run_id;
    hear(frame);
  }
  return runId;
}

async function* framesOf(response: Response): AsyncGenerator<Frame> {
  if (!response.ok || !response.body) throw new Error(`${response.status} ${await response.text()}`);
  let text = "";
  for await (const piece of response.body.pipeThrough(new TextDecoderStream())) {
    text += piece;
    for (let at = text.indexOf("\n\n"); at !== -1; at = text.indexOf("\n\n")) {
      const data = /^data: (.*)$/m.exec(text.slice(0, at))?.[1];
      text = text.slice(at + 2);
      if (data !== undefined) yield JSON.parse(data) as Frame;
    }
  }
}

/** Inserts a log of a thousand events in the form of the server's rows, then reads it from the start. */
async function resume({ context, server, api, model }: Scene): Promise<void> {
  context.progress("resume with 1,000 events");
  model.answer = () => ({ text: ["Hello."] });
  const { run_id } = await ask(api, "plain");
  const [row] = await server.sql("select last_event_id from agent_runs where id = $1", [run_id]);
  const last = Number(row?.["last_event_id"]);
  await server.sql(
    `insert into agent_events (run_id, seq, type, at, data)
     select $1, $2 + n, 'message.delta', now(), json_build_object('message_id', 'msg_bench', 'delta', 'a word or two ')
     from generate_series(1, $3::int) as n`,
    [run_id, last, events - last],
  );
  await server.sql("update agent_runs set last_event_id = $2 where id = $1", [run_id, events]);
  const whole: number[] = [];
  const first: number[] = [];
  for (let n = 0; n < 30; n += 1) {
    const startMs = performance.now();
    const response = await fetch(`${server.baseUrl}/v1/agents/runs/${run_id}/stream`, {
      headers: { authorization: `Bearer ${server.token}`, "last-event-id": "0" },
    });
    let heard = 0;
    for await (const frame of framesOf(response)) {
      heard += 1;
      if (frame.seq === 1) first.push(performance.now() - startMs);
    }
    if (heard !== events) throw new Error(`${heard} of ${events} events`);
    whole.push(performance.now() - startMs);
  }
  const note = "n=30";
  context.report({
    what: `resume, ${events} events, p50`,
    value: percentile(whole, 50),
    unit: "ms",
    samples: whole,
    bar: { atMost: 100 },
    note,
  });
  context.report({
    what: "resume, first frame, p50",
    value: percentile(first, 50),
    unit: "ms",
    samples: first,
    bar: { atMost: 20 },
    note,
  });
}

interface ToolServer {
  url: string;
  /** Milliseconds of each tool call, from the head of the request to the end of the response. */
  tookMs: number[];
  close(): void;
}

async function startTools(): Promise<ToolServer> {
  const server: HttpServer = createServer((request, response) => {
    const startMs = performance.now();
    request.resume();
    response.writeHead(200, { "content-type": "application/json" }).end('{"seen":true}', () => {
      tools.tookMs.push(performance.now() - startMs);
    });
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  const tools: ToolServer = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    tookMs: [],
    close: () => {
      server.closeAllConnections();
      server.close();
    },
  };
  return tools;
}
