/**
 * The calls that the last step asked for, each to its outcome, and the outcomes told to the conversation in one
 * transaction. A call is in the journal before it begins and after it ended. One that an earlier process began and did
 * not end is asked again where that changes no more. If it runs a command in the session's machine, that command is
 * waited for, or is started now if it never started. For any other call, the model is told that the outcome is not
 * known. Calls that need approval or a sign-in come after the others, together. The run is parked, and returns here when
 * people have acted on all of them.
 */
import type { App } from "#app.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { DomainError } from "#lib/errors.ts";
import { Semaphore } from "#lib/concurrency/semaphore.ts";
import type { AgentConfig } from "#agent/agents/config.ts";
import { type ApprovalRecord, approvalsByCall } from "#agent/approvals/approvals.ts";
import {
  began,
  type Call,
  type CallChange,
  callsOf,
  commandOf,
  commandStarts,
  ended,
  newCommandId,
  type Outcome,
  takeBack,
} from "#agent/calls/calls.ts";
import { type SignInWait, waitsByCall } from "#agent/oauth/waits/waits.ts";
import { faultsOf } from "#agent/json-schema.ts";
import { toolMessage } from "#agent/models/messages.ts";
import { storableText } from "#agent/storable.ts";
import { toWords, type Words } from "#agent/sessions/words.ts";
import { PictureBudget, stepPictures, type ToolContent } from "#agent/tools/pictures.ts";
import type { SignInNeeded, Tool, ToolUser } from "#agent/tools/tool.ts";
import { toolsOf } from "#agent/tools/tools-of.ts";
import { untraced } from "#agent/tracing/tracing.ts";
import type { NewEvent } from "../journal/journal.ts";
import { type Blocked, park, waitMinutesOf } from "./park-run.ts";
import type { RunRow } from "../store.ts";
import type { Going, Work } from "./run-context.ts";
import type { RunWriter } from "../journal/event-writer.ts";

/** Of one step. */
const callsAtOnce = 8;
const previewCharacters = 500;
/** Note about changed arguments, sent to the model with the result. */
const changeMaxCharacters = 4_000;
const unsigned =
  "Nobody signed in for this tool in time, so the call was not made. Ask the person to sign in, and call again when they have.";
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
  const waits = run.resumed === 0 ? undefined : await waitsByCall(app.db, run.id);
  const calls = going.calls ?? (await callsOf(app.db, run.id, run.steps));
  const turns = new Semaphore(callsAtOnce);
  const pictures = new PictureBudget(stepPictures);
  for (const { content } of calls) pictures.fit(content ?? []);
  const told: (Told | undefined)[] = calls.map(() => undefined);
  const blocked: (Blocked | undefined)[] = calls.map(() => undefined);
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
        const settled = await settle(app, config, asked, work);
        if ("blocked" in settled) {
          blocked[place] = settled.blocked;
          return;
        }
        if (settled.entry) {
          const isLast = told.every((one, other) => one !== undefined || other === place);
          if (isLast) words = wordsOf(told.with(place, settled.told));
          await record(work.writer, settled.entry, words);
          await passKillPoint("agent.call.ended");
        }
        told[place] = settled.told;
      }),
    ),
  );
  work.stop.signal.throwIfAborted();
  const left = blocked.filter((one) => one !== undefined);
  if (left.length > 0) {
    await park(app, config, { run, blocked: left, work });
    return "waiting";
  }
  if (!words) {
    words = wordsOf(told);
    await work.writer.commit([], {}, { words });
  }
  conversation.add(words);
  await passKillPoint("agent.calls.told");
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

/** After an expired wait, the run does not wait again for the same toolset. */
function waitsFor(
  config: AgentConfig,
  tool: Tool | undefined,
  waits: ReadonlyMap<string, SignInWait> | undefined,
): boolean {
  if (waitMinutesOf(config) === 0) return false;
  const before = [...(waits?.values() ?? [])];
  return !before.some(({ status, toolset_id }) => status === "expired" && toolset_id === tool?.toolsetId);
}

/** The call with the arguments that a person approved. */
function asApproved(call: Call, decision: Asked["decision"]): Call {
  const changed = decision?.status === "approved" ? decision.approved_arguments : null;
  return changed ? { ...call, arguments: changed } : call;
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
  decision: Pick<ApprovalRecord, "status" | "decided_by" | "approved_arguments"> | undefined;
  /** The call's own wait for a sign-in, if it had one. */
  wait: SignInWait | undefined;
  /** True if the run is parked when the call needs a sign-in. */
  waitsForSignIn: boolean;
  /** Shared by all calls of the step. */
  pictures: PictureBudget;
}

/** `blocked` if a person has to act first. A call whose outcome is in the journal has no entry. */
async function settle(
  app: App,
  config: AgentConfig,
  asked: Asked,
  work: Work,
): Promise<{ told: Told; entry?: Entry } | { blocked: Blocked }> {
  const { call, tool, decision } = asked;
  const told = ({ status, result, content }: Outcome) => ({
    id: call.id,
    tool: call.tool,
    isOk: status === "completed",
    text: result,
    content,
  });
  // Where its turn came after the end of the run it is not made, and the journal must not say that it was.
  work.stop.signal.throwIfAborted();
  if (call.status !== "requested" && call.status !== "running")
    return {
      told: told({ status: call.status, result: call.result ?? "", content: call.content ?? undefined }),
    };
  const refusal = await refusalOf(asked);
  if (!refusal && tool?.policy === "ask" && call.status === "requested" && decision?.status !== "approved")
    return { blocked: { call, parameters: tool.parameters } };
  const answered = refusal ?? (await carryOutCall(app, config, { ...asked, tool: tool! }, work));
  if ("needed" in answered) return { blocked: { call, needed: answered.needed } };
  const { status, result } = answered;
  const text = storableText(result);
  // The model learns that the result belongs to other arguments than its own.
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
  return { told: told(outcome), entry: { event, call: ended(call.id, outcome, at) } };
}

/** Why a call is not made; undefined where it is. */
async function refusalOf(asked: Asked): Promise<Outcome | undefined> {
  const { owner, call, tool, missing, decision, wait } = asked;
  if (call.status === "running" && !tool?.isRepeatable && !canContinue(call, tool))
    return { status: "unknown", result: "The call was cut off; whether it took effect is not known." };
  if (decision?.status === "denied") return { status: "denied", result: denial(decision.decided_by?.reason) };
  if (decision?.status === "expired")
    return { status: "expired", result: "Nobody decided on this call in time; it was not made." };
  if (wait?.status === "expired") return { status: "expired", result: unsigned };
  if (missing !== undefined) return { status: "failed", result: `The tool can't be used: ${missing}.` };
  if (!tool) return { status: "failed", result: "There is no such tool." };
  if (tool.policy === "deny") return { status: "denied", result: "This tool may not be used." };
  if (call.arguments === null) return { status: "failed", result: unfitArguments };
  const faults = await faultsOf(owner, tool.parameters, call.arguments);
  return faults.length > 0
    ? { status: "failed", result: `The arguments do not fit: ${faults.join("; ")}` }
    : undefined;
}

/** A call that an older server began has no id, and its command may have run. */
function canContinue({ command_id }: Call, tool: Tool | undefined): boolean {
  return tool?.runsCommand === true && command_id !== null;
}

/** Note for the model before the result of a call whose arguments a person changed. */
function changeOf(decision: Asked["decision"]): string {
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

async function carryOutCall(
  app: App,
  config: AgentConfig,
  { call, tool, waitsForSignIn }: Asked & { tool: Tool },
  { writer, stop, fetch, trace, traceparent, questions: ofRun }: Work,
): Promise<Outcome | { needed: SignInNeeded }> {
  stop.signal.throwIfAborted();
  const earlier = commandOf(call);
  if (!earlier) await begin(app, call, tool, writer);
  const traced = trace?.tool(call, fetch) ?? untraced({ traceparent }, fetch);
  const questions = ofRun.ofCall(call, stop.signal);
  const asked = tool.call({
    id: call.id,
    values: call.arguments as Record<string, unknown>,
    timeoutMs: config.limits.tool_timeout_seconds * 1000,
    startedAt: call.started_at ?? app.clock.now(),
    commandId: call.command_id,
    command: earlier,
    noteCommand: async (command) => {
      await writer.commit([], {}, { call: commandStarts(call.id, command) });
    },
    signal: stop.signal,
    fetch: traced.fetch,
    headers: traced.headers,
    sayWith: async (type, data, change) => {
      const isBlocked = waitsForSignIn && type === "connection.auth_required";
      await writer.commitWith([{ type, at: app.clock.now(), data }], {}, async (tx) => {
        await change(tx);
        // The call had no effect, so a server that takes over the run may make it.
        if (isBlocked) await takeBack(tx, call.id);
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

/** A call that begins again after a crash keeps the id of its command: the machine starts an id only once. */
async function begin(app: App, call: Call, tool: Tool, writer: RunWriter): Promise<void> {
  const at = app.clock.now();
  const started = { type: "tool.started", at, data: { call_id: call.id, tool: call.tool } };
  const commandId = tool.runsCommand ? (call.command_id ?? newCommandId()) : null;
  await writer.commit([started], {}, { call: began(call.id, at, commandId) });
  call.started_at = at;
  call.command_id = commandId;
  await passKillPoint("agent.call.began");
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
