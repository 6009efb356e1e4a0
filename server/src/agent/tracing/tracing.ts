/**
 * Traces of runs by OpenTelemetry's conventions for generative AI. A run is the span `invoke_agent`, an attempt of a
 * model call is `chat`, and a tool call is `execute_tool`. Without a collector, no spans are created. A run is one
 * trace, however many processes execute the run and however long a decision takes. Spans contain texts of models and
 * tools only with the setting `otlpContent`.
 */
import type { App } from "#app.ts";
import type { AgentConfig } from "../agents/config.ts";
import type { Call } from "../calls/calls.ts";
import type { Answer } from "../models/answer.ts";
import type { Fetch } from "../models/fetch.ts";
import type { Message } from "../models/messages.ts";
import { toTracedMessage } from "./traced-message.ts";
import { SpanSender } from "./sender.ts";
import { spanIdOf, toTraceparent, type TraceContext, traceOf } from "./traceparent.ts";

/** Fields of a run that its spans contain. */
export interface TracedRun {
  id: string;
  traceparent: string | null;
  agent_id: string;
  session_id: string;
  version: number;
}

/** A run that has ended. */
export interface EndedRun extends TracedRun {
  /** Name of the agent. */
  agent: string;
  error_code: string | null;
  input_tokens: number;
  output_tokens: number;
  cached_input_tokens: number;
  reasoning_tokens: number;
  created_at: Date;
  started_at: Date | null;
  finished_at: Date | null;
}

/** Provider names that differ between the conventions and Kontor. */
const providers: Readonly<Record<string, string>> = { mistral: "mistral_ai" };

/** Creates the tracing of this server. Returns undefined without a collector. `gatherMs`: see `SpanSender`. */
export function openTracing(
  { config, log, clock }: Pick<App, "config" | "log" | "clock">,
  gatherMs?: number,
): Tracing | undefined {
  const { otlpEndpoint, otlpHeaders, otlpContent } = config;
  if (otlpEndpoint === null) return undefined;
  const collector = {
    endpoint: otlpEndpoint,
    headers: otlpHeaders ?? {},
    resource: { "service.name": "kontor" },
  };
  return new Tracing({
    sender: new SpanSender(collector, log, { gatherMs }),
    clock,
    hasContent: otlpContent,
  });
}

interface TracingContext {
  sender: SpanSender;
  clock: App["clock"];
  /** True if spans contain texts of models and tools. */
  hasContent: boolean;
}

export class Tracing {
  readonly #ways: TracingContext;

  constructor(ways: TracingContext) {
    this.#ways = ways;
  }

  /**
   * Returns the trace of a run that this process executes. Returns undefined if the run's caller does not sample the
   * trace.
   */
  of(run: TracedRun): RunTrace | undefined {
    const context = traceOf(run);
    return context.isSampled ? new RunTrace(this.#ways, run, context) : undefined;
  }

  /** Exports the root span of an ended run. */
  addRootSpan(run: EndedRun, { model }: AgentConfig): void {
    const context = traceOf(run);
    if (!context.isSampled || run.finished_at === null) return;
    this.#ways.sender.add({
      traceId: context.traceId,
      spanId: spanIdOf(run.id),
      parentId: context.parentId,
      name: `invoke_agent ${run.agent}`,
      kind: "internal",
      startedAt: run.started_at ?? run.created_at,
      endedAt: run.finished_at,
      attributes: {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": providers[model.provider] ?? model.provider,
        "gen_ai.request.model": model.id,
        "gen_ai.agent.id": run.agent_id,
        "gen_ai.agent.name": run.agent,
        "gen_ai.agent.version": String(run.version),
        "gen_ai.conversation.id": run.session_id,
        "gen_ai.usage.input_tokens": run.input_tokens,
        "gen_ai.usage.output_tokens": run.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": run.cached_input_tokens,
        "gen_ai.usage.reasoning.output_tokens": run.reasoning_tokens,
        "kontor.run.id": run.id,
        "error.type": run.error_code ?? undefined,
      },
      error: run.error_code ?? undefined,
    });
  }

  close(): Promise<void> {
    return this.#ways.sender.close();
  }
}

export interface ChatRequest {
  provider: string;
  model: string;
  step: number;
  prompt: readonly Message[];
  output: "text" | "json";
  maxTokens: number | undefined;
  temperature: number | undefined;
}

/** Trace context for the requests of a tool call, and the function that ends the call's span. */
export interface ToolTrace {
  fetch: Fetch;
  headers: Readonly<Record<string, string>>;
  end: (outcome: { isOk: boolean; text: string }) => void;
}

/** Returns a fetch that forwards the caller's header for a run that is not traced here. */
export function forwardTrace({ traceparent }: Pick<TracedRun, "traceparent">, fetch: Fetch): ToolTrace {
  const headers: Record<string, string> = traceparent === null ? {} : { traceparent };
  return { headers, fetch: withHeaders(fetch, headers), end: () => {} };
}

function withHeaders(fetch: Fetch, headers: Readonly<Record<string, string>>): Fetch {
  return (input, init) =>
    fetch(input, { ...init, headers: { ...Object.fromEntries(new Headers(init?.headers)), ...headers } });
}

/** Maximum length of one attribute, in characters. */
const contentMaxCharacters = 256 * 1024;

/** Spans of one run while this process executes it. */
export class RunTrace {
  readonly #ways: TracingContext;
  readonly #run: TracedRun;
  readonly #context: TraceContext;
  #chats = 0;

  constructor(ways: TracingContext, run: TracedRun, context: TraceContext) {
    this.#ways = ways;
    this.#run = run;
    this.#context = context;
  }

  /** Starts a `chat` span. The returned function ends it with an answer or an error. */
  chat(asked: ChatRequest): (came: { answer: Answer } | { error: string }) => void {
    const startedAt = this.#ways.clock.now();
    this.#chats += 1;
    // The id contains the start time, so that a step that another process repeats gets another span id.
    const spanId = spanIdOf(`${this.#run.id} ${asked.step} ${this.#chats} ${startedAt.getTime()}`);
    return (came) => {
      const answer = "answer" in came ? came.answer : undefined;
      this.#add(spanId, `chat ${asked.model}`, "client", startedAt, {
        error: "error" in came ? came.error : undefined,
        attributes: {
          "gen_ai.operation.name": "chat",
          "gen_ai.provider.name": providers[asked.provider] ?? asked.provider,
          "gen_ai.request.model": asked.model,
          "gen_ai.request.max_tokens": asked.maxTokens,
          "gen_ai.request.temperature": asked.temperature,
          "gen_ai.output.type": asked.output,
          "gen_ai.conversation.id": this.#run.session_id,
          "gen_ai.response.finish_reasons": answer && [answer.finishReason],
          "gen_ai.usage.input_tokens": answer?.tokens.input,
          "gen_ai.usage.output_tokens": answer?.tokens.output,
          "gen_ai.usage.cache_read.input_tokens": answer?.tokens.cachedInput,
          "gen_ai.usage.reasoning.output_tokens": answer?.tokens.reasoning,
          "gen_ai.input.messages": this.#contentOf(() => asked.prompt.map(toTracedMessage)),
          "gen_ai.output.messages":
            answer &&
            this.#contentOf(() => [
              { ...toTracedMessage(answer.message), finish_reason: answer.finishReason },
            ]),
        },
      });
    };
  }

  /** Starts an `execute_tool` span. `headers` and `fetch` propagate the span to the tool's server. */
  tool(call: Pick<Call, "id" | "tool" | "arguments">, fetch: Fetch): ToolTrace {
    const startedAt = this.#ways.clock.now();
    const spanId = spanIdOf(`${call.id} ${startedAt.getTime()}`);
    const headers = { traceparent: toTraceparent(this.#context, spanId) };
    return {
      headers,
      fetch: withHeaders(fetch, headers),
      end: ({ isOk, text }) => {
        this.#add(spanId, `execute_tool ${call.tool}`, "internal", startedAt, {
          error: isOk ? undefined : "tool_failed",
          attributes: {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.tool,
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.type": "function",
            "gen_ai.conversation.id": this.#run.session_id,
            "gen_ai.tool.call.arguments": this.#contentOf(() => call.arguments),
            "gen_ai.tool.call.result": this.#contentOf(() => text),
          },
        });
      },
    };
  }

  #contentOf(what: () => unknown): string | undefined {
    return this.#ways.hasContent ? JSON.stringify(what()).slice(0, contentMaxCharacters) : undefined;
  }

  #add(
    spanId: string,
    name: string,
    kind: "internal" | "client",
    startedAt: Date,
    what: {
      attributes: Record<string, string | number | readonly string[] | undefined>;
      error: string | undefined;
    },
  ): void {
    this.#ways.sender.add({
      traceId: this.#context.traceId,
      spanId,
      parentId: spanIdOf(this.#run.id),
      name,
      kind,
      startedAt,
      endedAt: this.#ways.clock.now(),
      attributes: { ...what.attributes, "error.type": what.error },
      error: what.error,
    });
  }
}
