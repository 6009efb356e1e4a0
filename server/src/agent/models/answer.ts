/**
 * Assembles a model's answer from the parts that the model's server streams. The conversation gets the parts in the
 * order of their starts; the run gets calls, text and token counts. The server is not trusted, so the answer's
 * characters and parts are limited.
 */
import {
  InvalidResponseDataError,
  type LanguageModelV4StreamPart,
  type LanguageModelV4Usage,
} from "@ai-sdk/provider";
import { newCallId } from "../calls/calls.ts";
import { storableJson, storableText } from "../storable.ts";
import { ModelFailure } from "./failure.ts";
import type { Message } from "./messages.ts";
import type { ModelAddress } from "./providers.ts";
import { type Metadata, metadataOf, phaseOf, toReasoningPart } from "./reasoning.ts";

interface Tokens {
  input: number;
  output: number;
  cachedInput: number;
  reasoning: number;
}

/** A tool call of the answer. The server may send any id, so the call gets an id of Kontor. */
export interface RequestedCall {
  id: string;
  tool: string;
  /** Arguments of the call. Undefined if the model sent no JSON object. */
  values: Record<string, unknown> | undefined;
}

export interface Answer {
  /** The message to append to the conversation. */
  message: Extract<Message, { role: "assistant" }>;
  text: string;
  calls: RequestedCall[];
  finishReason: string;
  tokens: Tokens;
}

export interface Piece {
  kind: "text" | "reasoning";
  delta: string;
}

type Part = LanguageModelV4StreamPart;
type Block =
  | { kind: Piece["kind"]; text: string; metadata: Metadata }
  | { kind: "call"; call: RequestedCall };

/** Maximum number of characters in one answer: text, reasoning, arguments of calls and provider metadata. */
const maxCharacters = 4 * 1024 ** 2;
const maxCalls = 100;
/** Maximum number of parts in an answer, empty parts included: text, reasoning, calls, sources. */
const maxParts = 2_000;

/** Finish reasons of an incomplete response. */
const broken: readonly string[] = ["interrupted", "error"];

/** Returns true for the SDK's error about a stream that ended without a reason. A finish part follows this error. */
function isWithoutReason(error: unknown): boolean {
  return InvalidResponseDataError.isInstance(error) && error.message.includes("without a finish reason");
}

export class AnswerAssembler {
  readonly #address: ModelAddress;
  readonly #onPiece: (piece: Piece) => void;
  readonly #blocks: Block[] = [];
  readonly #open = new Map<string, Extract<Block, { text: string }>>();
  readonly #calls: RequestedCall[] = [];
  /** First half of a surrogate pair that is split between two deltas. */
  readonly #halves = { text: "", reasoning: "" };
  #characters = 0;
  /** Number of characters in arguments. Some providers stream arguments in deltas and repeat them whole. */
  #arguments = { inPieces: 0, whole: 0 };
  #parts = 0;
  #end: Pick<Answer, "finishReason" | "tokens"> | undefined;

  readonly #isStreamDone: () => boolean;

  /**
   * `isStreamDone` returns true if the server sent its end mark. A response with an end mark is complete even without a
   * finish reason.
   */
  constructor(
    address: ModelAddress,
    onPiece: (piece: Piece) => void,
    isStreamDone: () => boolean = () => false,
  ) {
    this.#address = address;
    this.#onPiece = onPiece;
    this.#isStreamDone = isStreamDone;
  }

  /** Adds a part. Returns true if the part has content. Throws a `ModelFailure`, or the error of the stream. */
  add(part: Part): boolean {
    switch (part.type) {
      case "stream-start":
      case "response-metadata":
      case "raw":
        return false;
      case "error":
        if (isWithoutReason(part.error) && this.#isWhole()) return false;
        throw part.error;
      case "finish":
        this.#end = { finishReason: this.#reasonOf(part.finishReason), tokens: tokensOf(part.usage) };
        return false;
      case "text-delta":
      case "reasoning-delta":
        this.#say(part);
        return part.delta !== "";
      case "tool-input-delta":
        this.#arguments.inPieces += part.delta.length;
        this.#requireShort();
        return part.delta !== "";
      case "text-start":
      case "reasoning-start":
      case "text-end":
      case "reasoning-end":
        this.#mark(part);
        break;
      case "tool-call":
        this.#call(part);
        break;
      default:
    }
    this.#countPart();
    return true;
  }

  /** Returns the complete answer, or throws a `ModelFailure`. */
  answer(): Answer {
    if (this.#end === undefined || broken.includes(this.#end.finishReason))
      throw new ModelFailure("away", "The model's answer ended before it was complete.");
    if (this.#end.finishReason === "content-filter")
      throw new ModelFailure("refused", "The provider's content filter stopped the answer.");
    const text = this.#blocks.map((block) => (block.kind === "text" ? block.text : "")).join("");
    const content = this.#blocks.flatMap((block) => this.#toPart(block));
    // Providers reject reasoning without a text or call after it.
    while (content.at(-1)?.type === "reasoning") content.pop();
    if (content.length === 0) content.push({ type: "text", text });
    return { ...this.#end, text, calls: this.#calls, message: { role: "assistant", content } };
  }

  /** Returns the finish reason. Some compatible servers send the whole response and `[DONE]`, but no finish reason. */
  #reasonOf({ unified, raw }: Extract<Part, { type: "finish" }>["finishReason"]): string {
    if (raw !== undefined || !broken.includes(unified) || !this.#isWhole()) return unified;
    return this.#calls.length > 0 ? "tool-calls" : "stop";
  }

  #isWhole(): boolean {
    const isSaid =
      this.#calls.length > 0 || this.#blocks.some((block) => block.kind === "text" && block.text !== "");
    return isSaid && this.#isStreamDone();
  }

  #countPart(): void {
    this.#parts += 1;
    if (this.#parts > maxParts)
      throw new ModelFailure("refused", `The model's answer has more than ${maxParts} parts.`);
  }

  #say(part: Extract<Part, { type: "text-delta" | "reasoning-delta" }>): void {
    const block = this.#mark(part);
    const { kind } = block;
    const whole = this.#halves[kind] + part.delta;
    this.#halves[kind] = /[\uD800-\uDBFF]$/.exec(whole)?.[0] ?? "";
    const delta = storableText(whole.slice(0, whole.length - this.#halves[kind].length));
    block.text += delta;
    this.#characters += delta.length;
    this.#requireShort();
    if (delta !== "") this.#onPiece({ kind, delta });
  }

  /** Finds or creates the part's block, and adds the provider's metadata. */
  #mark(part: { type: `${Piece["kind"]}-${string}`; id: string; providerMetadata?: unknown }) {
    const kind = part.type.startsWith("text") ? "text" : "reasoning";
    const id = `${kind} ${part.id}`;
    let block = this.#open.get(id);
    if (!block) {
      // A block that begins with a delta was not counted at its start.
      if (part.type.endsWith("-delta")) this.#countPart();
      block = { kind, text: "", metadata: {} };
      this.#open.set(id, block);
      this.#blocks.push(block);
    }
    for (const [name, value] of metadataOf(part, this.#address)) {
      this.#characters += value.length - (block.metadata[name]?.length ?? 0);
      block.metadata[name] = value;
    }
    // A later delta with the id of an ended block starts a new block.
    if (part.type.endsWith("-end")) this.#open.delete(id);
    this.#requireShort();
    return block;
  }

  #call({ toolName, input }: Extract<Part, { type: "tool-call" }>): void {
    if (this.#calls.length === maxCalls)
      throw new ModelFailure("refused", `The model called more than ${maxCalls} tools in one answer.`);
    this.#arguments.whole += input.length;
    this.#requireShort();
    const tool = storableText(toolName.slice(0, 200));
    const call = { id: newCallId(), tool, values: parseObject(input) };
    this.#calls.push(call);
    this.#blocks.push({ kind: "call", call });
  }

  #requireShort(): void {
    const { inPieces, whole } = this.#arguments;
    if (this.#characters + Math.max(inPieces, whole) > maxCharacters)
      throw new ModelFailure("refused", `The model's answer has more than ${maxCharacters} characters.`);
  }

  #toPart(block: Block): Answer["message"]["content"] {
    if (block.kind === "call") {
      const { id, tool, values } = block.call;
      return [{ type: "tool-call", toolCallId: id, toolName: tool, input: values ?? {} }];
    }
    if (block.kind === "text")
      return block.text === "" ? [] : [{ type: "text", text: block.text, ...phaseOf(block, this.#address) }];
    // Reasoning without the provider's metadata cannot be sent back.
    return Object.keys(block.metadata).length > 0 ? [toReasoningPart(block, this.#address)] : [];
  }
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

function tokensOf({ inputTokens, outputTokens }: LanguageModelV4Usage): Tokens {
  return {
    input: count(inputTokens.total),
    output: count(outputTokens.total),
    cachedInput: count(inputTokens.cacheRead),
    reasoning: count(outputTokens.reasoning),
  };
}

/** Returns a token count of the provider, or 0 for anything but a positive integer. */
function count(tokens: number | undefined): number {
  return tokens !== undefined && Number.isSafeInteger(tokens) && tokens > 0 ? Math.min(tokens, 1e9) : 0;
}
