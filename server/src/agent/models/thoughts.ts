/**
 * What a model thought before it asked for tools. Anthropic wants it back, signed and word for word, with the tools'
 * results; others keep it to themselves, or do without.
 */
import type { LanguageModelV4StreamPart } from "@ai-sdk/provider";

type ThoughtPart = Extract<
  LanguageModelV4StreamPart,
  { type: "reasoning-start" | "reasoning-delta" | "reasoning-end" }
>;

export interface Thought {
  type: "reasoning";
  text: string;
  providerOptions: { anthropic: Record<string, string> };
}

export class Thoughts {
  readonly #blocks = new Map<string, { text: string; signed: Record<string, string> }>();

  /** How much longer the answer is by it, beyond the text of a delta. */
  add(part: ThoughtPart): number {
    const block = this.#blocks.get(part.id) ?? { text: "", signed: {} };
    this.#blocks.set(part.id, block);
    if (part.type === "reasoning-delta") block.text += part.delta;
    const texts = Object.entries(part.providerMetadata?.["anthropic"] ?? {}).filter(
      (entry): entry is [string, string] => typeof entry[1] === "string",
    );
    Object.assign(block.signed, Object.fromEntries(texts));
    return texts.reduce((sum, [, text]) => sum + text.length, 0);
  }

  /** In the order in which they began; what nobody signed is left out. */
  signed(): Thought[] {
    return [...this.#blocks.values()]
      .filter(({ signed }) => Object.keys(signed).length > 0)
      .map(({ text, signed }) => ({ type: "reasoning", text, providerOptions: { anthropic: signed } }));
  }
}
