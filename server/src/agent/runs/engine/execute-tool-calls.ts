/**
 * Executes the tool calls of the last step, and adds all results to the conversation in one transaction. The journal
 * records each call before its start and after its end. After a crash, a repeatable call runs again. A call that runs a
 * command in the session's machine waits for that command, or starts it. For any other interrupted call, the model gets
 * an unknown outcome. Calls that need an approval or a sign-in come last, together: the run is parked. It continues in
 * this file after people have acted on all of these calls.
 */
import type { App } from "#app.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { DomainError } from "#lib/errors.ts";
import { Semaphore } from "#lib/concurrency/semaphore.ts";
import type { AgentConfig } from "#agent/agents/config.ts";
import { type ApprovalRecord, approvalsByCall } from "#agent/approvals/approvals.ts";
import {
  markStarted,
  type Call,
  type CallChange,
  commandOf,
  markCommand,
  markEnded,
  newCommandId,
  type Outcome,
} from "#agent/calls/calls.ts";
import { callsOfStep, resetCall } from "#agent/calls/store.ts";
import { type SignInWait, waitsByCall } from "#agent/oauth/waits/waits.ts";
import { findFaults } from "#agent/json-schema.ts";
import { toolMessage } from "#agent/models/messages.ts";
import { storableText } from "#agent/storable.ts";
import { toNewMessages, type NewMessages } from "#agent/sessions/new-messages.ts";
import { PictureBudget, stepPictures, type ToolContent } from "#agent/tools/pictures.ts";
import type { SignInNeeded, Tool, ToolUser } from "#agent/tools/tool.ts";
import { toolsOf } from "#agent/tools/tools-of.ts";
import { forwardTrace } from "#agent/tracing/tracing.ts";
import type { NewEvent } from "../journal/journal.ts";
import { type BlockedCall, parkRun, waitMinutesOf } from "./park-run.ts";
import type { RunRow } from "../store.ts";
import type { RunProgress, RunContext } from "./run-context.ts";
import type { RunWriter } from "../journal/event-writer.ts";

/** Maximum number of concurrent calls in one step. */
const callsAtOnce = 8;
const previewCharacters = 500;
/** Maximum length of the note about changed arguments. The model gets the note with the result. */
const changeMaxCharacters = 4_000;
const missingSignIn =
  "Nobody signed in for this tool in time, so the call was not made. Ask the person to sign in, and call again when they have.";
/**
 * Result of a call with invalid arguments. The model should shorten its call, because a repeat would exceed the output
 * limit again.
 */
const invalidArguments =
  "The arguments are not a JSON object. If a limit of output tokens cut them off, call again with shorter ones.";

/** Executes the calls. Returns `waiting` if the run is parked and this process no longer executes it. */
export async function executeToolCalls(
  app: App,
  config: AgentConfig,
  progress: RunProgress,
  context: RunContext,
): Promise<"done" | "waiting"> {
  const { run, conversation } = progress;
  if (!conversation.hasOpenCalls) return "done";
  const usable = async () => {
    const { tools, unavailable } = await toolsOf(app, userOf(run, config, context));
    return { tools, why: new Map(unavailable.map((toolset) => [toolset.id, toolset.why])) };
  };
  const atFirst = await usable();
  const approvals = run.resumed === 0 ? undefined : await approvalsByCall(app.db, run.id);
  const waits = run.resumed === 0 ? undefined : await waitsByCall(app.db, run.id);
  const calls = progress.calls ?? (await callsOfStep(app.db, run.id, run.steps));
  const turns = new Semaphore(callsAtOnce);
  const pictures = new PictureBudget(stepPictures);
  for (const { content } of calls) pictures.fit(content ?? []);
  const results: (CallResult | undefined)[] = calls.map(() => undefined);
  const blocked: (BlockedCall | undefined)[] = calls.map(() => undefined);
  const toToolMessages = (all: readonly (CallResult | undefined)[]) =>
    toNewMessages(run.id, [{ kind: "tools", message: toolMessage(all as CallResult[]) }]);
  let words: NewMessages | undefined;
  await Promise.all(
    calls.map((call, place) =>
      turns.run(async () => {
        // The tools are read again: earlier calls may have taken hours, and the toolset may have changed since.
        const { tools, why } = place < callsAtOnce ? atFirst : await usable();
        const tool = tools.get(call.tool);
        const missing = call.toolset_id === null ? undefined : why.get(call.toolset_id);
        const decision = approvals?.get(call.id);
        const asked = {
          owner: run.workspace_id,
          call: asApproved(call, decision),
          tool,
          missing,
          decision,
          wait: waits?.get(call.id),
          waitsForSignIn: waitsFor(config, tool, waits),
          pictures,
        };
        const outcome = await executeToolCall(app, config, asked, context);
        if ("blocked" in outcome) {
          blocked[place] = outcome.blocked;
          return;
        }
        if (outcome.entry) {
          const isLast = results.every((one, other) => one !== undefined || other === place);
          if (isLast) words = toToolMessages(results.with(place, outcome.result));
          await commitEnd(context.writer, outcome.entry, words);
          await passKillPoint("agent.call.ended");
        }
        results[place] = outcome.result;
      }),
    ),
  );
  context.stop.signal.throwIfAborted();
  const left = blocked.filter((one) => one !== undefined);
  if (left.length > 0) {
    await parkRun(app, config, { run, blocked: left, context });
    return "waiting";
  }
  if (!words) {
    words = toToolMessages(results);
    await context.writer.commit([], {}, { words });
  }
  conversation.add(words);
  await passKillPoint("agent.calls.told");
  return "done";
}

type CallResult = Parameters<typeof toolMessage>[0][number];

/** End of a call, as an event of the run and a change of the journal. */
interface CallEnd {
  event: NewEvent;
  call: CallChange;
}

/**
 * Stores the end of a call. The last call's end also stores the results of all calls. If these exceed the session's
 * limit, only the journal gets the outcome.
 */
async function commitEnd(
  writer: RunWriter,
  { event, call }: CallEnd,
  words: NewMessages | undefined,
): Promise<void> {
  try {
    await writer.commit([event], {}, { call, words });
  } catch (error) {
    if (words && error instanceof DomainError) await writer.commit([event], {}, { call });
    throw error;
  }
}

/**
 * Returns true if a missing sign-in parks the run. After an expired wait, the run does not wait again for the same
 * toolset.
 */
function waitsFor(
  config: AgentConfig,
  tool: Tool | undefined,
  waits: ReadonlyMap<string, SignInWait> | undefined,
): boolean {
  if (waitMinutesOf(config) === 0) return false;
  const before = [...(waits?.values() ?? [])];
  return !before.some(({ status, toolset_id }) => status === "expired" && toolset_id === tool?.toolsetId);
}

/** Returns the call with the arguments that a person approved. */
function asApproved(call: Call, decision: DecidedCall["decision"]): Call {
  const changed = decision?.status === "approved" ? decision.approved_arguments : null;
  return changed ? { ...call, arguments: changed } : call;
}

/** A call with its tool, its decision and its wait. */
interface DecidedCall {
  /** Workspace of the run. */
  owner: string;
  call: Call;
  tool: Tool | undefined;
  /** Reason why the toolset is unavailable. */
  missing: string | undefined;
  /** Decision on the call. Undefined if the call needed no approval. */
  decision: Pick<ApprovalRecord, "status" | "decided_by" | "approved_arguments"> | undefined;
  /** The call's own wait for a sign-in. Undefined if the call never waited. */
  wait: SignInWait | undefined;
  /** True if the run is parked when the call needs a sign-in. */
  waitsForSignIn: boolean;
  /** Limit for pictures, which all calls of the step share. */
  pictures: PictureBudget;
}

/**
 * Executes one call. Returns `blocked` if a person must act first. A call without an entry has its outcome in the
 * journal.
 */
async function executeToolCall(
  app: App,
  config: AgentConfig,
  asked: DecidedCall,
  context: RunContext,
): Promise<{ result: CallResult; entry?: CallEnd } | { blocked: BlockedCall }> {
  const { call, tool, decision } = asked;
  const toResult = ({ status, result, content }: Outcome) => ({
    id: call.id,
    tool: call.tool,
    isOk: status === "completed",
    text: result,
    content,
  });
  // A call whose slot becomes free after the end of the run is not made, and the journal must not record the call.
  context.stop.signal.throwIfAborted();
  if (call.status !== "requested" && call.status !== "running")
    return {
      result: toResult({
        status: call.status,
        result: call.result ?? "",
        content: call.content ?? undefined,
      }),
    };
  const refusal = await findRefusal(asked);
  if (!refusal && tool?.policy === "ask" && call.status === "requested" && decision?.status !== "approved")
    return { blocked: { call, parameters: tool.parameters } };
  const answered = refusal ?? (await runTool(app, config, { ...asked, tool: tool! }, context));
  if ("needed" in answered) return { blocked: { call, needed: answered.needed } };
  const { status, result } = answered;
  const text = storableText(result);
  // The note informs the model that the result belongs to changed arguments.
  const change = refusal ? "" : changeOf(decision);
  const content = answered.content && asked.pictures.fit(withText(change, answered.content));
  const outcome = { status, result: change + text, content };
  const at = app.clock.now();
  const isOk = outcome.status === "completed";
  const duration = call.started_at ? at.getTime() - call.started_at.getTime() : 0;
  const event = {
    type: isOk ? "tool.completed" : "tool.failed",
    at,
    data: {
      call_id: call.id,
      duration_ms: duration,
      result_preview: text.slice(0, previewCharacters),
      error: isOk ? null : outcome.status,
    },
  };
  return { result: toResult(outcome), entry: { event, call: markEnded(call.id, outcome, at) } };
}

/** Returns the outcome of a call that must not be made, or undefined if the call may be made. */
async function findRefusal(asked: DecidedCall): Promise<Outcome | undefined> {
  const { owner, call, tool, missing, decision, wait } = asked;
  if (call.status === "running" && !tool?.isRepeatable && !canContinue(call, tool))
    return { status: "unknown", result: "The call was cut off; whether it took effect is not known." };
  if (decision?.status === "denied") return { status: "denied", result: denial(decision.decided_by?.reason) };
  if (decision?.status === "expired")
    return { status: "expired", result: "Nobody decided on this call in time; it was not made." };
  if (wait?.status === "expired") return { status: "expired", result: missingSignIn };
  if (missing !== undefined) return { status: "failed", result: `The tool can't be used: ${missing}.` };
  if (!tool) return { status: "failed", result: "There is no such tool." };
  if (tool.policy === "deny") return { status: "denied", result: "This tool may not be used." };
  if (call.arguments === null) return { status: "failed", result: invalidArguments };
  const faults = await findFaults(owner, tool.parameters, call.arguments);
  return faults.length > 0
    ? { status: "failed", result: `The arguments do not fit: ${faults.join("; ")}` }
    : undefined;
}

/**
 * Returns true if a started call has a command that can be continued. Calls that started before migration 0101 have no
 * command id, and their command may have run.
 */
function canContinue({ command_id }: Call, tool: Tool | undefined): boolean {
  return tool?.runsCommand === true && command_id !== null;
}

/** Returns the note that precedes the result of a call whose arguments a person changed. */
function changeOf(decision: DecidedCall["decision"]): string {
  if (!decision?.approved_arguments) return "";
  const text = JSON.stringify(decision.approved_arguments);
  const shown = text.length > changeMaxCharacters ? `${text.slice(0, changeMaxCharacters)} [cut off]` : text;
  return `A person changed the arguments of this call and approved it. It was made with: ${shown}\n\n`;
}

function withText(text: string, content: ToolContent): ToolContent {
  return text === "" ? content : [{ type: "text", text }, ...content];
}

function denial(reason: string | undefined): string {
  return reason === undefined ? "A person denied this call." : `A person denied this call: ${reason}`;
}

async function runTool(
  app: App,
  config: AgentConfig,
  { call, tool, waitsForSignIn }: DecidedCall & { tool: Tool },
  { writer, stop, fetch, trace, traceparent, questions: ofRun }: RunContext,
): Promise<Outcome | { needed: SignInNeeded }> {
  stop.signal.throwIfAborted();
  const earlier = commandOf(call);
  if (!earlier) await startCall(app, call, tool, writer);
  const traced = trace?.tool(call, fetch) ?? forwardTrace({ traceparent }, fetch);
  const questions = ofRun.ofCall(call, stop.signal);
  const asked = tool.call({
    id: call.id,
    values: call.arguments as Record<string, unknown>,
    timeoutMs: config.limits.tool_timeout_seconds * 1000,
    startedAt: call.started_at ?? app.clock.now(),
    commandId: call.command_id,
    command: earlier,
    noteCommand: async (command) => {
      await writer.commit([], {}, { call: markCommand(call.id, command) });
    },
    signal: stop.signal,
    fetch: traced.fetch,
    headers: traced.headers,
    emitWith: async (type, data, change) => {
      const isBlocked = waitsForSignIn && type === "connection.auth_required";
      await writer.commitWith([{ type, at: app.clock.now(), data }], {}, async (tx) => {
        await change(tx);
        // The call had no effect, so the next process may make it.
        if (isBlocked) await resetCall(tx, call.id);
      });
      if (isBlocked) await passKillPoint("agent.sign_in.requested");
    },
    ask: questions.ask,
  });
  const { isOk, isUnknown, text, content, signIn } = await asked
    .finally(questions.end)
    .catch((error: unknown) => {
      traced.end({ isOk: false, text: "" });
      throw error;
    });
  traced.end({ isOk, text });
  await passKillPoint("agent.call.answered");
  if (waitsForSignIn && signIn) return { needed: signIn };
  if (isUnknown) return { status: "unknown", result: text };
  return { status: isOk ? "completed" : "failed", result: text, content };
}

/**
 * Records the start of a call. A call that starts again after a crash keeps its command id, because the machine starts
 * each id only once.
 */
async function startCall(app: App, call: Call, tool: Tool, writer: RunWriter): Promise<void> {
  const at = app.clock.now();
  const started = { type: "tool.started", at, data: { call_id: call.id, tool: call.tool } };
  const commandId = tool.runsCommand ? (call.command_id ?? newCommandId()) : null;
  await writer.commit([started], {}, { call: markStarted(call.id, at, commandId) });
  call.started_at = at;
  call.command_id = commandId;
  await passKillPoint("agent.call.began");
}

export function userOf(run: RunRow, config: AgentConfig, { access }: Pick<RunContext, "access">): ToolUser {
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
