/**
 * Executes a run from the end of its journal. A step is one model call. A single statement stores the step, its
 * messages, tokens and events, and for the last step the end of the run. So after a crash, the run contains only
 * complete steps, and another process continues with the next step.
 */
import type { App } from "#app.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { PausableTimer } from "#lib/concurrency/pausable-timer.ts";
import { getVersion } from "#agent/agents/agents.ts";
import type { AgentConfig } from "#agent/agents/config.ts";
import { findFaults } from "#agent/json-schema.ts";
import { recall } from "#agent/memory/recall.ts";
import { withoutFence } from "#agent/models/fence.ts";
import { type Message, withoutReasoning } from "#agent/models/messages.ts";
import { toRequestedCall } from "#agent/calls/calls.ts";
import { Conversation } from "#agent/sessions/conversation.ts";
import { toNewMessages } from "#agent/sessions/new-messages.ts";
import { storableJson } from "#agent/storable.ts";
import type { Tool } from "#agent/tools/tool.ts";
import { toolsOf } from "#agent/tools/tools-of.ts";
import { WorkerAccess } from "#agent/workers/access.ts";
import type { OwnApi } from "#agent/workers/workers.ts";
import { type StepAnswer, requestAnswerOrShorten, toFunction } from "./model-step.ts";
import { buildCompletion } from "../journal/end-run.ts";
import { RunFailure } from "./run-failure.ts";
import { promptOf } from "./prompt.ts";
import { tokensOf } from "../schema.ts";
import type { NewEvent } from "../journal/journal.ts";
import type { AcquiredRun } from "./run-context.ts";
import { type RunErrorCode, toFinishReason } from "../states.ts";
import { hasOpenStep, type RunRow } from "../store.ts";
import { executeToolCalls, userOf } from "./execute-tool-calls.ts";
import { planSummary, summarize } from "./summarize.ts";
import type { StepPrompt } from "../tables.ts";
import { Questions } from "./questions.ts";
import { type RunSetup, type RunProgress, RunInterrupted, type RunContext } from "./run-context.ts";

const ownMessagesMaxMiB = 8;

/** Executes a run until it completes or waits for a person. Throws a `RunFailure`, or the reason of the abort. */
export async function executeRun(app: App, acquired: AcquiredRun, given: RunSetup): Promise<void> {
  const { writer, stop } = given;
  const { row: taken } = acquired;
  const config = acquired.config ?? (await configOf(app, taken));
  const { max_seconds: maxSeconds } = limitsOf(config, taken);
  const leftMs = maxSeconds * 1000 - taken.active_ms;
  const outOfTime = new RunFailure("limit_time", `The run took more than ${maxSeconds} s.`);
  const clock = new PausableTimer(leftMs, () => stop.abort(outOfTime));
  const access = accessOf(app, { run: taken, config, leftMs, api: given.api });
  const questions = new Questions(app, { run: taken, writer, clock, followed: given.followed });
  const context = { ...given, access, questions, clock };
  try {
    if (taken.attempts > 1 && (await hasOpenStep(app.db, taken.id)))
      writer.add("step.reset", { step: taken.steps + 1 });
    writer.add("run.started", { version: taken.version, attempt: taken.attempts });
    const conversation = acquired.conversation ?? (await Conversation.read(app.db, taken.session_id));
    const progress: RunProgress = { run: taken, conversation, calls: undefined };
    do {
      if (context.isSuspended()) throw new RunInterrupted("The workspace is suspended.");
    } while (await runStep(app, config, progress, context));
  } catch (error) {
    // Aborts calls that run in parallel with the failed call.
    stop.abort(error);
    throw error;
  } finally {
    clock.stop();
    await questions.close();
    await access?.close();
  }
}

async function configOf({ db }: App, { agent_id, version }: RunRow): Promise<AgentConfig> {
  return (await getVersion(db, { id: agent_id, latest_version: 0 }, String(version))).config as AgentConfig;
}

function accessOf(
  app: App,
  given: { run: RunRow; config: AgentConfig; leftMs: number; api: OwnApi | undefined },
): WorkerAccess | undefined {
  const { run, config, leftMs, api } = given;
  const scopes = config.platform?.scopes ?? [];
  if (!api || scopes.length === 0) return undefined;
  return new WorkerAccess(app, api, {
    runId: run.id,
    agentId: run.agent_id,
    scopes,
    leftMs: leftMs + personMs(config),
  });
}

/**
 * Returns the extra time for people's answers to questions of tools. The run's own time is paused during a question.
 */
function personMs({ toolsets }: AgentConfig): number {
  return toolsets.some(({ elicitation }) => elicitation === "person") ? 86_400_000 : 0;
}

/** Executes one step. Returns true if the run continues. */
async function runStep(
  app: App,
  config: AgentConfig,
  progress: RunProgress,
  context: RunContext & { clock: PausableTimer },
): Promise<boolean> {
  const { writer, stop, fetch, pauseMs, clock } = context;
  const { conversation } = progress;
  requireWithinLimits(config, progress.run, conversation);
  if ((await executeToolCalls(app, config, progress, context)) === "waiting") return false;
  const { run } = progress;
  const startedAt = app.clock.now();
  const { said, before, summary } = conversation;
  requireOwnMessagesFit(run, said);
  const step = run.steps + 1;
  const calling = {
    config,
    workspaceId: run.workspace_id,
    step,
    writer,
    signal: stop.signal,
    fetch,
    pauseMs,
    waits: run.model_waits,
    deadline: performance.now() + clock.leftMs,
    trace: context.trace,
  };
  const plan = planSummary(config, conversation);
  const summaryResult =
    plan &&
    (progress.summaryFailure ?? (await summarize(app, calling, { runId: run.id, plan, conversation })));
  if (summaryResult && !("words" in summaryResult)) progress.summaryFailure = { why: summaryResult.why };
  if (summaryResult?.advanced) {
    progress.run = { ...run, ...summaryResult.advanced, model_waits: 0 };
    if ("words" in summaryResult) conversation.add(summaryResult.words);
    return true;
  }
  // The facts stay as they were at the run's first step, because a change would invalidate the provider's cache of the
  // conversation.
  progress.remembered ??= { text: await recall(app.db, userOf(run, config, context)) };
  const remembered = progress.remembered.text;
  // The prompt omits the reasoning of earlier runs.
  const told = said.map((one) =>
    one.run_id === run.id ? one : { ...one, message: withoutReasoning(one.message as Message) },
  );
  const promptWith = (atMost?: number) => promptOf(config, told, { before, summary, remembered, atMost });
  const { messages, leftOut, tokens } = promptWith(context.maxConversationTokens);
  const { tools, unavailable } = await toolsOf(app, userOf(run, config, context));
  const needed = unavailable.find(({ isRequired }) => isRequired);
  if (needed)
    throw new RunFailure("tool_unavailable", `The toolset ${needed.id} can't be used: ${needed.why}.`);
  if (leftOut > 0) {
    // The facts are read again: the omitted messages may contain newly saved facts, and the cache is invalid in any
    // case.
    delete progress.remembered;
    writer.add("context.compacted", {
      left_out: leftOut,
      // Reason why older messages are omitted without a summary.
      ...(progress.summaryFailure ? { summary_error: progress.summaryFailure.why } : {}),
    });
  }
  await passKillPoint("agent.step.begins");
  const usable = [...tools.values()].filter(({ policy }) => policy !== "deny");
  const request = { ...calling, messages, tools: usable };
  let atMost = context.maxConversationTokens ?? null;
  const stepAnswer = await requestAnswerOrShorten(app, request, () => {
    context.maxConversationTokens = Math.ceil(tokens / 2);
    const shorter = promptWith(context.maxConversationTokens);
    if (shorter.tokens >= tokens) return undefined;
    atMost = context.maxConversationTokens;
    return shorter;
  });
  await passKillPoint("agent.step.answered");
  stop.signal.throwIfAborted();
  const { answer } = stepAnswer;
  const finishedAt = app.clock.now();
  const used = {
    input_tokens: answer.tokens.input,
    output_tokens: answer.tokens.output,
    cached_input_tokens: answer.tokens.cachedInput,
    reasoning_tokens: answer.tokens.reasoning,
  };
  const total = tokensOf({
    input_tokens: run.input_tokens + used.input_tokens,
    output_tokens: run.output_tokens + used.output_tokens,
    cached_input_tokens: run.cached_input_tokens + used.cached_input_tokens,
    reasoning_tokens: run.reasoning_tokens + used.reasoning_tokens,
  });
  const isRepaired = said.some(({ run_id, kind }) => run_id === run.id && kind === "repair");
  const isAsking = answer.calls.length > 0;
  const faults = isAsking ? [] : await findAnswerFaults(config, run, answer.text);
  const end =
    faults.length === 0 && !isAsking
      ? buildCompletion(outputOf(config, answer.text), total, toFinishReason(answer.finishReason), finishedAt)
      : undefined;
  const calls = answer.calls.map(({ id, tool, values }) => ({
    id,
    tool,
    toolset_id: tools.get(tool)?.toolsetId ?? null,
    arguments: values ?? null,
  }));
  const toolsSent = JSON.stringify(usable.map(toFunction));
  const prompt: StepPrompt = {
    before,
    last: before + said.length,
    summary: summary?.through ?? null,
    remembered: remembered ?? null,
    at_most: atMost,
    ...(progress.toolsSent === toolsSent ? {} : { tools: usable.map(toFunction) }),
  };
  const words = toNewMessages(run.id, [
    { kind: "answer", message: answer.message },
    ...(faults.length > 0 && !isRepaired
      ? [{ kind: "repair" as const, message: repairRequest(faults) }]
      : []),
  ]);
  await passKillPoint("agent.step.commits");
  const advanced = await writer.commit(
    [...stepEvents(step, stepAnswer, tools, finishedAt), ...(end ? [end.event] : [])],
    { ...end?.change },
    {
      step: {
        model: stepAnswer.model,
        finish_reason: answer.finishReason,
        ...used,
        prompt: storableJson(prompt),
        started_at: startedAt,
        finished_at: finishedAt,
      },
      calls,
      words,
    },
  );
  progress.run = { ...run, ...advanced, model_waits: 0 };
  progress.toolsSent = toolsSent;
  progress.calls = calls.map((call, position) => toRequestedCall(run.id, step, position, call));
  conversation.add(words);
  await passKillPoint("agent.step.committed");
  if (faults.length > 0 && isRepaired)
    throw new RunFailure("output_invalid", `The answer does not fit the schema: ${faults.join("; ")}`);
  return end === undefined;
}

/** Returns the limits of the config. Each resume grants the limits again. */
function limitsOf({ limits }: AgentConfig, { resumes }: RunRow) {
  const times = resumes + 1;
  return {
    max_seconds: limits.max_seconds * times,
    max_steps: limits.max_steps * times,
    max_tokens: limits.max_tokens * times,
  };
}

function requireWithinLimits(config: AgentConfig, run: RunRow, { said }: Conversation): void {
  const limits = limitsOf(config, run);
  const fail = (code: RunErrorCode, message: string) => new RunFailure(code, message, lastTextOf(run, said));
  if (run.steps >= limits.max_steps)
    throw fail("limit_steps", `The run reached its limit of ${limits.max_steps} steps.`);
  const used = run.input_tokens + run.output_tokens;
  if (used >= limits.max_tokens)
    throw fail(
      "limit_tokens",
      `The run used ${used} of its ${limits.max_tokens} tokens. Each step counts its whole input again.`,
    );
}

/** Returns the last text that the model wrote in this run. */
function lastTextOf(run: RunRow, said: Conversation["said"]): string | undefined {
  const texts = said
    .filter(({ run_id, kind }) => run_id === run.id && kind === "answer")
    .map(({ message }) => {
      const { content } = message as Extract<Message, { role: "assistant" }>;
      return content.map((part) => (part.type === "text" ? part.text : "")).join("");
    });
  return texts.findLast((text) => text !== "");
}

/** Throws if the messages of the run are too large. Each step sends all messages of its run. */
function requireOwnMessagesFit(
  run: RunRow,
  said: readonly { run_id: string | null; kind: string; bytes: number }[],
): void {
  const own = said.filter(({ run_id, kind }) => run_id === run.id && kind !== "input" && kind !== "summary");
  if (own.reduce((sum, { bytes }) => sum + bytes, 0) > ownMessagesMaxMiB * 1024 ** 2)
    throw new RunFailure(
      "limit_tokens",
      `The run's answers and results take more than ${ownMessagesMaxMiB} MiB.`,
    );
}

function stepEvents(
  step: number,
  { answer, model, messageId }: StepAnswer,
  tools: ReadonlyMap<string, Tool>,
  at: Date,
): NewEvent[] {
  const { input, output, cachedInput, reasoning } = answer.tokens;
  const tokens = { input, output, cached_input: cachedInput, reasoning, total: input + output };
  const message =
    messageId === null
      ? []
      : [{ type: "message.completed", at, data: { message_id: messageId, text: answer.text } }];
  const asked = answer.calls.map(({ id, tool, values }) => ({
    type: "tool.input",
    at,
    data: {
      call_id: id,
      tool,
      toolset_id: tools.get(tool)?.toolsetId ?? null,
      arguments: values ?? {},
    },
  }));
  const finishReason = toFinishReason(answer.finishReason);
  const data = { step, model, tokens, finish_reason: finishReason };
  return [...message, ...asked, { type: "step.completed", at, data }];
}

/**
 * Returns the output of a run. Callers parse the output of a JSON schema, so its code fence is removed here and stays
 * in the conversation only.
 */
function outputOf({ output }: AgentConfig, text: string): string {
  return output.type === "text" ? text : withoutFence(text);
}

async function findAnswerFaults({ output }: AgentConfig, run: RunRow, text: string): Promise<string[]> {
  if (output.type === "text") return [];
  try {
    return await findFaults(run.workspace_id, output.schema, JSON.parse(withoutFence(text)));
  } catch {
    return ["it is not JSON"];
  }
}

function repairRequest(faults: readonly string[]): Message {
  const text = `Your answer does not fit the JSON schema it must follow:\n${faults.join("\n")}\nAnswer once more, with the corrected JSON alone.`;
  return { role: "user", content: [{ type: "text", text }] };
}
