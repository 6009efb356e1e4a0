/**
 * One call of a model. What it says is handed on as it comes; what comes of it is whole, or a failure that says
 * whether another try may help. A server of models is somebody else's program: its answer is bounded, its sentences
 * are shortened, and whatever it repeats of the key is taken out.
 */
import { APICallError, type LanguageModelV4, type LanguageModelV4CallOptions } from "@ai-sdk/provider";
import { AddressError } from "#lib/checked-lookup.ts";
import { newCallId } from "../calls/calls.ts";
import { storableJson, storableText } from "../storable.ts";
import type { Message } from "./messages.ts";
import { type Thought, Thoughts } from "./thoughts.ts";

export interface Tokens {
  input: number;
  output: number;
  cachedInput: number;
  reasoning: number;
}

/** A call that the model asks for, under an id of ours: a model's own may be anything. */
export interface AskedCall {
  id: string;
  tool: string;
  /** What it says the arguments are; undefined where that is no JSON object. */
  values: Record<string, unknown> | undefined;
}

export interface Answer {
  /** As it goes into the conversation. */
  message: Extract<Message, { role: "assistant" }>;
  text: string;
  calls: AskedCall[];
  finishReason: string;
  tokens: Tokens;
}

export interface Piece {
  kind: "text" | "reasoning";
  delta: string;
}

export class ModelFailure extends Error {
  override readonly name = "ModelFailure";
  /**
   * `overloaded`: too many asked; `away`: try again; `too_long`: it was told more than it takes; `refused`: trying again
   * is of no use.
   */
  readonly kind: "overloaded" | "away" | "too_long" | "refused";
  readonly retryAfterMs: number | null;

  constructor(kind: ModelFailure["kind"], message: string, retryAfterMs: number | null = null) {
    super(message);
    this.kind = kind;
    this.retryAfterMs = retryAfterMs;
  }
}

/** Of one answer, with the arguments of its calls. */
const textMaxCharacters = 4 * 1024 ** 2;
const callsMax = 100;

/** Throws a `ModelFailure`, or what the signal was aborted with. */
export async function callModel(
  model: LanguageModelV4,
  options: LanguageModelV4CallOptions & { abortSignal: AbortSignal },
  onPiece: (piece: Piece) => void,
  secret: string,
): Promise<Answer> {
  const { abortSignal } = options;
  try {
    const { stream } = await model.doStream(options);
    return await gather(stream, onPiece);
  } catch (error) {
    abortSignal.throwIfAborted();
    throw explain(error, secret);
  }
}

async function gather(
  stream: Awaited<ReturnType<LanguageModelV4["doStream"]>>["stream"],
  onPiece: (piece: Piece) => void,
): Promise<Answer> {
  const said = { text: "", reasoning: "" };
  // A character that takes two may come in two pieces.
  const halves = { text: "", reasoning: "" };
  const calls: AskedCall[] = [];
  let asked = 0;
  let end: Pick<Answer, "finishReason" | "tokens"> | undefined;
  const thoughts = new Thoughts();
  for await (const part of stream) {
    if (part.type === "reasoning-start" || part.type === "reasoning-delta" || part.type === "reasoning-end") {
      asked += thoughts.add(part);
      requireShort(said.text.length + said.reasoning.length + asked);
    }
    if (part.type === "text-delta" || part.type === "reasoning-delta") {
      const kind = part.type === "text-delta" ? "text" : "reasoning";
      const whole = halves[kind] + part.delta;
      halves[kind] = /[\uD800-\uDBFF]$/.exec(whole)?.[0] ?? "";
      const delta = storableText(whole.slice(0, whole.length - halves[kind].length));
      said[kind] += delta;
      requireShort(said.text.length + said.reasoning.length + asked);
      if (delta !== "") onPiece({ kind, delta });
    } else if (part.type === "tool-call") {
      if (calls.length === callsMax)
        throw new ModelFailure("refused", "The model called more tools at once than it may.");
      asked += part.input.length;
      requireShort(said.text.length + said.reasoning.length + asked);
      const tool = storableText(part.toolName.slice(0, 200));
      calls.push({ id: newCallId(), tool, values: parseObject(part.input) });
    } else if (part.type === "error") throw part.error;
    else if (part.type === "finish") {
      const { inputTokens, outputTokens } = part.usage;
      end = {
        finishReason: part.finishReason.unified,
        tokens: {
          input: count(inputTokens.total),
          output: count(outputTokens.total),
          cachedInput: count(inputTokens.cacheRead),
          reasoning: count(outputTokens.reasoning),
        },
      };
    }
  }
  if (end === undefined || ["interrupted", "error"].includes(end.finishReason))
    throw new ModelFailure("away", "The model's answer broke off.");
  if (end.finishReason === "content-filter")
    throw new ModelFailure("refused", "The provider's content filter stopped the answer.");
  const { text } = said;
  return { ...end, text, calls, message: messageOf(thoughts.signed(), text, calls) };
}

function requireShort(characters: number): void {
  if (characters > textMaxCharacters)
    throw new ModelFailure("refused", "The model said more than an answer may hold.");
}

function messageOf(
  thoughts: readonly Thought[],
  text: string,
  calls: readonly AskedCall[],
): Answer["message"] {
  const asked = calls.map(({ id, tool, values }) => ({
    type: "tool-call" as const,
    toolCallId: id,
    toolName: tool,
    input: values ?? {},
  }));
  const words = text === "" && asked.length > 0 ? [] : [{ type: "text" as const, text }];
  return { role: "assistant", content: [...thoughts, ...words, ...asked] };
}

function parseObject(text: string): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(storableJson(JSON.parse(text === "" ? "{}" : text)));
    return typeof value === "object" && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : undefined;
  } catch {
    return undefined;
  }
}

/** What a provider says it used is its own word: a number, or nothing. */
function count(tokens: number | undefined): number {
  return tokens !== undefined && Number.isSafeInteger(tokens) && tokens > 0 ? Math.min(tokens, 1e9) : 0;
}

/** Worth another try: too early, a conflict, a time-out, or the server's own fault. */
const isPassing = (status: number): boolean => [408, 409, 425].includes(status) || status >= 500;

function explain(error: unknown, secret: string): ModelFailure {
  if (error instanceof ModelFailure) return error;
  if (error instanceof AddressError)
    return new ModelFailure("refused", `The model can't be called. ${error.message}`);
  if (APICallError.isInstance(error) && error.statusCode !== undefined && error.statusCode !== 200) {
    const { statusCode, responseHeaders } = error;
    const said = `The model's server answered ${statusCode}: ${tidy(error.message, secret)}`;
    if ([400, 413, 422].includes(statusCode) && isTooLong(`${error.message} ${error.responseBody ?? ""}`))
      return new ModelFailure("too_long", said);
    // 529: Anthropic's word for "overloaded".
    if (statusCode === 429 || statusCode === 529)
      return new ModelFailure("overloaded", said, retryAfter(responseHeaders));
    return new ModelFailure(isPassing(statusCode) ? "away" : "refused", said, retryAfter(responseHeaders));
  }
  const { code, message } = (error ?? {}) as NodeJS.ErrnoException;
  const why = typeof message === "string" ? tidy(message, secret) : "";
  return new ModelFailure(
    isTooLong(why) ? "too_long" : "away",
    `The model could not be heard out${code ? ` (${tidy(String(code), secret)})` : ""}: ${why}`,
  );
}

/** As OpenAI, Anthropic, Mistral, vLLM, llama.cpp and Ollama say that a prompt is longer than they take. */
function isTooLong(text: string): boolean {
  return /context[ _](length|window|size|limit)|(prompt|input) (is|length is) too long|request_too_large/i.test(
    text.slice(0, 4096),
  );
}

function tidy(message: string, secret: string): string {
  const text = secret.length >= 4 ? message.replaceAll(secret, "[key]") : message;
  return text.replaceAll("\0", "").toWellFormed().slice(0, 300);
}

function retryAfter(headers: Record<string, string> | undefined): number | null {
  const seconds = Number(headers?.["retry-after"]);
  return headers?.["retry-after"] !== undefined && Number.isFinite(seconds) && seconds >= 0
    ? seconds * 1000
    : null;
}
