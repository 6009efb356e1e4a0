/**
 * The model call of a step. An overloaded or broken call is retried after a pause, and then the fallbacks are tried in
 * order. If an attempt breaks, an event resets its text.
 */
import { setTimeout as sleep } from "node:timers/promises";
import type { App } from "#app.ts";
import type { AgentConfig } from "#agent/agents/config.ts";
import { findCredentials, openKey } from "#agent/credentials/credentials.ts";
import type { Answer } from "#agent/models/answer.ts";
import { callModel } from "#agent/models/call.ts";
import { ModelFailure } from "#agent/models/failure.ts";
import type { Fetch } from "#agent/models/fetch.ts";
import type { Message } from "#agent/models/messages.ts";
import type { ModelAddress } from "#agent/models/providers.ts";
import { newId } from "#lib/ids.ts";
import type { Tool } from "#agent/tools/tool.ts";
import type { RunTrace } from "#agent/tracing/tracing.ts";
import { ModelBusy, PromptTooLong, RunFailure } from "./run-failure.ts";
import type { Prompt } from "./prompt.ts";
import type { RunWriter } from "../journal/event-writer.ts";

const triesOfEach = 3;
/** Longest pause within a round. A provider with a longer Retry-After is skipped in this round. */
const pauseMaxMs = 2_000;
/** Shortest wait that parks the run. A parked run occupies no worker. */
const parkedFromMs = 2_000;
/** Longest wait between two rounds if no provider sends Retry-After. */
const waitMaxMs = 60_000;
/**
 * Maximum number of waits for a server with a transient error. The four waits take 4 to 32 s, and most such errors end
 * within a minute.
 */
const faultWaitsMax = 4;

export interface ModelRequest {
  config: AgentConfig;
  workspaceId: string;
  step: number;
  messages: Message[];
  tools: readonly Tool[];
  writer: RunWriter;
  signal: AbortSignal;
  fetch: Fetch;
  /** Length of the first pause in milliseconds. Each next pause is twice as long. */
  pauseMs: number;
  /** Number of consecutive waits before this step. */
  waits: number;
  /** Deadline of the run, as a time of `performance.now()`. */
  deadline: number;
  trace?: RunTrace | undefined;
  /** True if the call writes a summary: plain text that no event repeats. */
  isSummary?: boolean;
}

export interface StepAnswer {
  answer: Answer;
  model: string;
  /** Id of the message in the events. Null if the answer has no text. */
  messageId: string | null;
}

/** Calls the model. If every model rejects the conversation as too long, calls again with a shorter conversation. */
export async function requestAnswerOrShorten(
  app: Pick<App, "db" | "secrets" | "clock">,
  request: ModelRequest,
  shorter: () => Prompt | undefined,
): Promise<StepAnswer> {
  try {
    return await requestAnswer(app, request);
  } catch (error) {
    const prompt = error instanceof PromptTooLong ? shorter() : undefined;
    if (!prompt) throw error;
    request.writer.add("context.compacted", { left_out: prompt.leftOut });
    return requestAnswer(app, { ...request, messages: prompt.messages });
  }
}

/**
 * Tries the model and its fallbacks. If all fail and at least one is overloaded, waits and retries until the run's
 * deadline. If at least one has a transient error, retries a few times. Throws a `ModelBusy` for a long wait, else a
 * `RunFailure`.
 */
async function requestAnswer(
  app: Pick<App, "db" | "secrets" | "clock">,
  request: ModelRequest,
): Promise<StepAnswer> {
  for (let round = request.waits; ; round += 1) {
    const outcome = await tryCandidates(app, request);
    if ("answer" in outcome) return outcome;
    const { last, tooLong, overloaded, fault } = outcome;
    if (!last)
      throw new RunFailure(
        "credential_missing",
        "The model's credential was deleted. Create a credential, and publish a version that names it.",
      );
    if (tooLong) throw new PromptTooLong(tooLong.message);
    const busy = overloaded ?? (round < faultWaitsMax ? fault : undefined);
    if (!busy) throw new RunFailure("model_error", last.message);
    // The wait is at least the backoff. Otherwise a server that always sends Retry-After: 0 would fill the run's
    // events.
    const backoffMs = Math.min(waitMaxMs, request.pauseMs * 2 ** Math.min(triesOfEach + round, 20));
    const pauseMs = Math.max(busy.retryAfterMs ?? 0, backoffMs);
    const waitMs = pauseMs * (1 + Math.random() / 4);
    if (performance.now() + waitMs >= request.deadline)
      throw new RunFailure(overloaded ? "model_rate_limited" : "model_error", busy.message);
    const until = new Date(app.clock.now().getTime() + waitMs);
    if (waitMs >= parkedFromMs) throw new ModelBusy(request.step, until, Math.ceil(waitMs));
    request.writer.add("model.waiting", { step: request.step, retry_at: until.toISOString() });
    await pause(waitMs, request.signal);
  }
}

interface Failures {
  last: ModelFailure | undefined;
  tooLong: ModelFailure | undefined;
  /** Failure of the overloaded model with the shortest Retry-After. */
  overloaded: ModelFailure | undefined;
  /**
   * Failure with the shortest Retry-After among servers that responded with a transient error. A wrong address does not
   * count.
   */
  fault: ModelFailure | undefined;
}

/** Runs one round, which tries each candidate a few times, with short pauses. */
export async function tryCandidates(
  app: Pick<App, "db" | "secrets">,
  request: ModelRequest,
): Promise<StepAnswer | Failures> {
  const { model } = request.config;
  const candidates = [model, ...(model.fallbacks ?? [])];
  const known = await findCredentials(
    app.db,
    request.workspaceId,
    candidates.flatMap(({ credential_id }) => credential_id ?? []),
  );
  const failures: Failures = {
    last: undefined,
    tooLong: undefined,
    overloaded: undefined,
    fault: undefined,
  };
  for (const { id, credential_id, images } of candidates) {
    const credential = credential_id === undefined ? undefined : known.get(credential_id);
    const address = credential ? addressOf(app, credential, id) : builtIn(model, id);
    if (!address) continue;
    let last: ModelFailure | undefined;
    for (let attempt = 1; attempt <= triesOfEach; attempt += 1) {
      try {
        return await tryModel(request, address, images);
      } catch (error) {
        if (!(error instanceof ModelFailure)) throw error;
        last = error;
      }
      const pauseMs = Math.max(last.retryAfterMs ?? 0, request.pauseMs * 2 ** (attempt - 1));
      const isFinal = last.kind === "refused" || last.kind === "too_long" || attempt === triesOfEach;
      if (isFinal || pauseMs > pauseMaxMs) break;
      // The jitter prevents that runs which failed together also retry together.
      await pause(pauseMs * (1 + Math.random() / 4), request.signal);
    }
    failures.last = last;
    if (last?.kind === "too_long") failures.tooLong = last;
    if (last?.kind === "overloaded") failures.overloaded = sooner(failures.overloaded, last);
    if (last?.kind === "away" && last.isFromServer) failures.fault = sooner(failures.fault, last);
  }
  return failures;
}

function addressOf(
  app: Pick<App, "secrets">,
  credential: Parameters<typeof openKey>[1],
  id: string,
): ModelAddress {
  const { id: credentialId, provider, base_url: baseUrl } = credential;
  return { credentialId, provider, baseUrl, apiKey: openKey(app, credential), id };
}

/**
 * Returns the address of the built-in model. Returns undefined if the model needs a credential, as every fallback does.
 */
function builtIn(model: AgentConfig["model"], id: string): ModelAddress | undefined {
  if (model.provider !== "echo" || id !== model.id) return undefined;
  return { credentialId: "", provider: "echo", baseUrl: null, apiKey: "(none)", id };
}

function sooner(one: ModelFailure | undefined, other: ModelFailure): ModelFailure {
  return one === undefined || (other.retryAfterMs ?? 0) < (one.retryAfterMs ?? 0) ? other : one;
}

async function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  await sleep(milliseconds, undefined, { signal }).catch(() => signal.throwIfAborted());
}

async function tryModel(
  { config, step, messages, tools, writer, signal, fetch, trace, isSummary = false }: ModelRequest,
  address: ModelAddress,
  takesPictures: boolean | undefined,
): Promise<StepAnswer> {
  const { provider, id: model } = address;
  const { temperature, max_output_tokens, reasoning, silence_seconds } = config.model;
  let messageId: string | null = null;
  const isJson = config.output.type === "json_schema" && !isSummary;
  if (!isSummary) writer.add("step.started", { step, model });
  const ended = trace?.chat({
    provider,
    model,
    step,
    prompt: messages,
    output: isJson ? "json" : "text",
    maxTokens: max_output_tokens,
    temperature,
  });
  try {
    const answer = await callModel(
      address,
      fetch,
      {
        prompt: messages,
        abortSignal: signal,
        takesPictures,
        onPicturesRefused: () => writer.add("model.images_refused", { step, model }),
        silenceSeconds: silence_seconds,
        ...(temperature === undefined ? {} : { temperature }),
        ...(max_output_tokens === undefined ? {} : { maxOutputTokens: max_output_tokens }),
        ...(reasoning === undefined ? {} : { reasoning }),
        ...(tools.length === 0 ? {} : { tools: tools.map(toFunction) }),
        ...(isJson && config.output.type === "json_schema"
          ? { responseFormat: { type: "json", name: "answer", schema: config.output.schema } }
          : {}),
      },
      ({ kind, delta }) => {
        if (isSummary) return;
        if (kind === "reasoning") return writer.add("reasoning.delta", { delta });
        if (messageId === null) {
          messageId = newId("msg_");
          writer.add("message.started", { message_id: messageId });
        }
        writer.add("message.delta", { message_id: messageId, delta });
      },
    );
    ended?.({ answer });
    return { answer, model, messageId };
  } catch (error) {
    ended?.({ error: reasonOf(error) });
    if (error instanceof ModelFailure && !isSummary) {
      const { silentSeconds } = error;
      writer.add("step.reset", {
        step,
        ...(silentSeconds === undefined ? {} : { silent_seconds: silentSeconds }),
      });
    }
    throw error;
  }
}

/** Returns a short reason for the trace, with few distinct values. */
function reasonOf(error: unknown): string {
  if (error instanceof ModelFailure) return error.kind;
  return error instanceof RunFailure ? error.code : "cancelled";
}

export function toFunction({ name, description, parameters }: Tool) {
  return { type: "function" as const, name, description, inputSchema: parameters };
}
