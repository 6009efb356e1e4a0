/**
 * The calls that the last step asked for, each to its outcome, and the outcomes told to the conversation in one
 * transaction. A call is in the journal before it begins and after it ended. One that an earlier process began and did
 * not end is asked again where that changes no more; else the model is told that nobody knows what came of it. Calls
 * that a person has to decide on come last, one by one: the run waits, and comes here again with the decision.
 */
import type { App } from "#app.ts";
import { reached } from "#lib/kill-points.ts";
import { DomainError } from "#lib/errors.ts";
import { Semaphore } from "#lib/semaphore.ts";
import type { AgentConfig } from "../agents/config.ts";
import { type ApprovalRecord, approvalsByCall, question, raise } from "../approvals/approvals.ts";
import { began, type Call, type CallChange, callsOf, ended, type Outcome } from "../calls/calls.ts";
import { faultsOf } from "../json-schema.ts";
import { toolMessage } from "../models/messages.ts";
import { storableText } from "../storable.ts";
import { toWords, type Words } from "../sessions/words.ts";
import type { Tool, ToolUser } from "../tools/tool.ts";
import { toolsOf } from "../tools/tools-of.ts";
import { untraced } from "../tracing/tracing.ts";
import type { NewEvent } from "./journal.ts";
import type { RunRow } from "./store.ts";
import type { Going, Work } from "./work.ts";
import type { RunWriter } from "./writer.ts";

/** Of one step. */
const callsAtOnce = 8;
const previewCharacters = 500;
/** Tells a model to shorten its call, because it would repeat a call that the output limit cuts off. */
const unfitArguments =
  "The arguments are not a JSON object. If a limit of output tokens cut them off, call again with shorter ones.";

/** `waiting`: nothing of the run is this process's any more. */
export async function settleCalls(
  app: App,
  config: AgentConfig,
  going: Going,
  work: Work,
): Promise<"settled" | "waiting"> {
  const { run, conversation } = going;
  if (!conversation.hasUntoldCalls) return "settled";
  const usable = async () => {
    const { tools, unavailable } = await toolsOf(app, userOf(run, config, work));
    return { tools, why: new Map(unavailable.map((toolset) => [toolset.id, toolset.why])) };
  };
  const atFirst = await usable();
  const approvals = run.resumed === 0 ? undefined : await approvalsByCall(app.db, run.id);
  const calls = going.calls ?? (await callsOf(app.db, run.id, run.steps));
  const turns = new Semaphore(callsAtOnce);
  const told: (Told | undefined)[] = calls.map(() => undefined);
  const wordsOf = (results: readonly (Told | undefined)[]) =>
    toWords(run.id, [{ kind: "tools", message: toolMessage(results as Told[]) }]);
  let words: Words | undefined;
  await Promise.all(
    calls.map((call, place) =>
      turns.run(async () => {
        // Those before it may have taken hours, and its toolset may be another's by now.
        const { tools, why } = place < callsAtOnce ? atFirst : await usable();
        const tool = tools.get(call.tool);
        const missing = call.toolset_id === null ? undefined : why.get(call.toolset_id);
        const decision = approvals?.get(call.id);
        const settled = await settle(
          app,
          config,
          { owner: run.workspace_id, call, tool, missing, decision },
          work,
        );
        if (settled?.entry) {
          const isLast = told.every((one, other) => one !== undefined || other === place);
          if (isLast) words = wordsOf(told.with(place, settled.told));
          await record(work.writer, settled.entry, words);
          await reached("agent.call.ended");
        }
        told[place] = settled?.told;
      }),
    ),
  );
  work.stop.signal.throwIfAborted();
  const first = calls.find((_, place) => told[place] === undefined);
  if (first) {
    await wait(app, config, { run, call: first, work });
    return "waiting";
  }
  if (!words) {
    words = wordsOf(told);
    await work.writer.commit([], {}, { words });
  }
  conversation.add(words);
  await reached("agent.calls.told");
  return "settled";
}

type Told = Parameters<typeof toolMessage>[0][number];

/** That a call ended, for the log and the journal. */
interface Entry {
  event: NewEvent;
  call: CallChange;
}

/** With the words that tell of all calls, where it is the last. A session that is full of them keeps no outcome from the journal. */
async function record(writer: RunWriter, { event, call }: Entry, words: Words | undefined): Promise<void> {
  try {
    await writer.commit([event], {}, { call, words });
  } catch (error) {
    if (words && error instanceof DomainError) await writer.commit([event], {}, { call });
    throw error;
  }
}

/** A call, with what it is decided by. */
interface Asked {
  /** Whose run it is. */
  owner: string;
  call: Call;
  tool: Tool | undefined;
  /** Why its toolset can't be used. */
  missing: string | undefined;
  /** Undefined where nobody was asked. */
  decision: Pick<ApprovalRecord, "status" | "decided_by"> | undefined;
}

/** The run's last transaction here: the question, and a run that nobody carries out. */
async function wait(
  app: App,
  config: AgentConfig,
  { run, call, work }: { run: RunRow; call: Call; work: Work },
): Promise<void> {
  const at = app.clock.now();
  const { expires_in_seconds: seconds, on_expire: onExpire } = config.approvals;
  const asked = question({
    workspaceId: run.workspace_id,
    runId: run.id,
    call: { id: call.id, tool: call.tool, arguments: call.arguments as Record<string, unknown> },
    onExpire,
    at,
    expiresAt: new Date(at.getTime() + seconds * 1000),
  });
  const data = {
    request_id: asked.id,
    call_id: call.id,
    tool: call.tool,
    arguments: call.arguments,
    expires_at: asked.expiresAt.toISOString(),
  };
  const events = [
    { type: "approval.requested", at, data },
    { type: "run.pending_approval", at, data: { request_id: asked.id } },
  ];
  await work.writer.commitWith(events, { status: "pending_approval", process_id: null }, (tx) =>
    raise(tx, asked),
  );
  await reached("agent.approval.raised");
}

/** Undefined where a person has to be asked first; without an entry where the journal has its outcome. */
async function settle(
  app: App,
  config: AgentConfig,
  asked: Asked,
  work: Work,
): Promise<{ told: Told; entry?: Entry } | undefined> {
  const { call, tool, decision } = asked;
  const told = ({ status, result }: Outcome) => ({
    id: call.id,
    tool: call.tool,
    isOk: status === "completed",
    text: result,
  });
  // Where its turn came after the end of the run it is not made, and the journal must not say that it was.
  work.stop.signal.throwIfAborted();
  if (call.status !== "requested" && call.status !== "running")
    return { told: told({ status: call.status, result: call.result ?? "" }) };
  const refusal = await refusalOf(asked);
  if (!refusal && tool?.policy === "ask" && call.status === "requested" && decision?.status !== "approved")
    return undefined;
  const { status, result } = refusal ?? (await carryOutCall(app, config, call, tool!, work));
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
  return { told: told(outcome), entry: { event, call: ended(call.id, outcome, at) } };
}

/** Why a call is not made; undefined where it is. */
async function refusalOf({ owner, call, tool, missing, decision }: Asked): Promise<Outcome | undefined> {
  if (call.status === "running" && !tool?.isRepeatable)
    return { status: "unknown", result: "The call was cut off; whether it took effect is not known." };
  if (decision?.status === "denied") return { status: "denied", result: denial(decision.decided_by?.reason) };
  if (decision?.status === "expired")
    return { status: "expired", result: "Nobody decided on this call in time; it was not made." };
  if (missing !== undefined) return { status: "failed", result: `The tool can't be used: ${missing}.` };
  if (!tool) return { status: "failed", result: "There is no such tool." };
  if (tool.policy === "deny") return { status: "denied", result: "This tool may not be used." };
  if (call.arguments === null) return { status: "failed", result: unfitArguments };
  const faults = await faultsOf(owner, tool.parameters, call.arguments);
  return faults.length > 0
    ? { status: "failed", result: `The arguments do not fit: ${faults.join("; ")}` }
    : undefined;
}

function denial(reason: string | undefined): string {
  return reason === undefined ? "A person denied this call." : `A person denied this call: ${reason}`;
}

async function carryOutCall(
  app: App,
  config: AgentConfig,
  call: Call,
  tool: Tool,
  { writer, stop, fetch, trace, traceparent }: Work,
): Promise<Outcome> {
  stop.signal.throwIfAborted();
  const at = app.clock.now();
  const started = { type: "tool.started", at, data: { call_id: call.id, tool: call.tool } };
  await writer.commit([started], {}, { call: began(call.id, at) });
  call.started_at = at;
  await reached("agent.call.began");
  const traced = trace?.tool(call, fetch) ?? untraced({ traceparent }, fetch);
  const asked = tool.call({
    id: call.id,
    values: call.arguments as Record<string, unknown>,
    timeoutMs: config.limits.tool_timeout_seconds * 1000,
    signal: stop.signal,
    fetch: traced.fetch,
    headers: traced.headers,
    sayWith: async (type, data, change) => {
      await writer.commitWith([{ type, at: app.clock.now(), data }], {}, change);
    },
  });
  const { isOk, text } = await asked.catch((error: unknown) => {
    traced.end({ isOk: false, text: "" });
    throw error;
  });
  traced.end({ isOk, text });
  await reached("agent.call.answered");
  return { status: isOk ? "completed" : "failed", result: text };
}

export function userOf(run: RunRow, config: AgentConfig, { access }: Pick<Work, "access">): ToolUser {
  return {
    workspaceId: run.workspace_id,
    agentId: run.agent_id,
    sessionId: run.session_id,
    runId: run.id,
    endUserId: run.end_user_id,
    config,
    access,
  };
}
