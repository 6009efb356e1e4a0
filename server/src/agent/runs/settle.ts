/**
 * The calls that the last step asked for, each to its outcome, and the outcomes told to the conversation in one
 * transaction. A call is in the journal before it begins and after it ended. One that an earlier process began and did
 * not end is asked again where that changes no more; else the model is told that nobody knows what came of it.
 */
import type { App } from "#app.ts";
import { reached } from "#lib/kill-points.ts";
import { Semaphore } from "#lib/semaphore.ts";
import type { AgentConfig } from "../agents/config.ts";
import { began, type Call, ended, type Outcome, requested } from "../calls/calls.ts";
import { faultsOf } from "../json-schema.ts";
import { toolMessage } from "../models/messages.ts";
import { storableText } from "../storable.ts";
import { hasUntoldCalls, say } from "../sessions/sessions.ts";
import type { Tool, ToolUser } from "../tools/tool.ts";
import { toolsOf } from "../tools/tools-of.ts";
import type { RunRow } from "./store.ts";
import type { Work } from "./work.ts";

/** Of one step. */
const callsAtOnce = 8;
const previewCharacters = 500;

export async function settleCalls(app: App, config: AgentConfig, run: RunRow, work: Work): Promise<void> {
  if (run.steps === 0 || !(await hasUntoldCalls(app.db, run.session_id))) return;
  const { tools } = await toolsOf(app, userOf(run, config));
  const calls = await requested(app.db, run.id, run.steps);
  const turns = new Semaphore(callsAtOnce);
  const startedMs = performance.now();
  const results = await Promise.all(
    calls.map((call) => turns.run(() => settle(app, config, call, tools.get(call.tool), work))),
  );
  work.stop.signal.throwIfAborted();
  await work.writer.commit([], { activeMs: performance.now() - startedMs }, (tx) =>
    say(tx, run.session_id, [{ runId: run.id, kind: "tools", message: toolMessage(results) }]),
  );
  await reached("agent.calls.told");
}

async function settle(
  app: App,
  config: AgentConfig,
  call: Call,
  tool: Tool | undefined,
  work: Work,
): Promise<{ id: string; tool: string; isOk: boolean; text: string }> {
  const told = ({ status, result }: Outcome) => ({
    id: call.id,
    tool: call.tool,
    isOk: status === "completed",
    text: result,
  });
  // Where its turn came after the end of the run it is not made, and the journal must not say that it was.
  work.stop.signal.throwIfAborted();
  if (call.status !== "requested" && call.status !== "running")
    return told({ status: call.status, result: call.result ?? "" });
  const { status, result } =
    (await refusalOf(call, tool)) ?? (await carryOutCall(app, config, call, tool!, work));
  const outcome = { status, result: storableText(result) };
  const at = app.clock.now();
  const isOk = outcome.status === "completed";
  const duration = call.started_at ? at.getTime() - call.started_at.getTime() : 0;
  const event = {
    type: isOk ? "tool.completed" : "tool.failed",
    at,
    data: {
      call_id: call.id,
      duration_ms: duration,
      result_preview: outcome.result.slice(0, previewCharacters),
      error: isOk ? null : outcome.status,
    },
  };
  await work.writer.commit([event], {}, (tx) => ended(tx, call.id, outcome, at));
  await reached("agent.call.ended");
  return told(outcome);
}

/** Why a call is not made; undefined where it is. */
async function refusalOf(call: Call, tool: Tool | undefined): Promise<Outcome | undefined> {
  if (call.status === "running" && !tool?.isRepeatable)
    return { status: "unknown", result: "The call was cut off; whether it took effect is not known." };
  if (!tool) return { status: "failed", result: "There is no such tool." };
  if (tool.policy === "deny") return { status: "denied", result: "This tool may not be used." };
  if (call.arguments === null) return { status: "failed", result: "The arguments are not a JSON object." };
  const faults = await faultsOf(tool.parameters, call.arguments);
  return faults.length > 0
    ? { status: "failed", result: `The arguments do not fit: ${faults.join("; ")}` }
    : undefined;
}

async function carryOutCall(
  app: App,
  config: AgentConfig,
  call: Call,
  tool: Tool,
  { writer, stop, fetch }: Work,
): Promise<Outcome> {
  stop.signal.throwIfAborted();
  const at = app.clock.now();
  const started = { type: "tool.started", at, data: { call_id: call.id, tool: call.tool } };
  await writer.commit([started], {}, (tx) => began(tx, call.id, at));
  call.started_at = at;
  await reached("agent.call.began");
  const { isOk, text } = await tool.call({
    id: call.id,
    values: call.arguments as Record<string, unknown>,
    timeoutMs: config.limits.tool_timeout_seconds * 1000,
    signal: stop.signal,
    fetch,
    say: (type, data) => writer.add(type, data),
    sayWith: async (type, data, change) => {
      await writer.commit([{ type, at: app.clock.now(), data }], {}, change);
    },
  });
  await reached("agent.call.answered");
  return { status: isOk ? "completed" : "failed", result: text };
}

export function userOf(run: RunRow, config: AgentConfig): ToolUser {
  return {
    workspaceId: run.workspace_id,
    agentId: run.agent_id,
    sessionId: run.session_id,
    runId: run.id,
    endUserId: run.end_user_id,
    config,
  };
}
