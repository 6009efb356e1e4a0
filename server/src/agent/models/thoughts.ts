/**
 * What a model thought before it asked for tools. Anthropic and OpenAI want it back with the tools' results, as they
 * signed or sealed it; others keep it to themselves, or do without. OpenAI's is sealed for the account whose key it was
 * asked with, and told to no other.
 */
import type { LanguageModelV4Message, SharedV4ProviderOptions } from "@ai-sdk/provider";
import type { ModelAddress } from "./providers.ts";

export type Metadata = Record<string, string>;

export interface Thought {
  type: "reasoning";
  text: string;
  providerOptions: SharedV4ProviderOptions;
}

/** Each provider's own words for what goes back. */
const kept: Partial<Record<ModelAddress["provider"], readonly string[]>> = {
  anthropic: ["signature", "redactedData"],
  openai: ["itemId", "reasoningEncryptedContent", "phase"],
};

/** What its provider says of a part and has to be told again. */
export function metadataOf(
  { providerMetadata }: { providerMetadata?: unknown },
  { provider }: ModelAddress,
): [string, string][] {
  const said = (providerMetadata as Record<string, Record<string, unknown>> | undefined)?.[provider] ?? {};
  return (kept[provider] ?? []).flatMap((name): [string, string][] =>
    typeof said[name] === "string" ? [[name, said[name]]] : [],
  );
}

export function thoughtOf(
  { text, metadata }: { text: string; metadata: Metadata },
  { provider, credentialId }: ModelAddress,
): Thought {
  return { type: "reasoning", text, providerOptions: { [provider]: metadata, kontor: { credentialId } } };
}

/** OpenAI's models say of words whether they are the answer or said on the way. */
export function phaseOf(
  { metadata }: { metadata: Metadata },
  { provider }: ModelAddress,
): { providerOptions?: SharedV4ProviderOptions } {
  const { phase } = metadata;
  return phase === undefined ? {} : { providerOptions: { [provider]: { phase } } };
}

/** The message with those thoughts alone that this model takes. */
export function thoughtsFor(
  { provider, credentialId }: ModelAddress,
  message: LanguageModelV4Message,
): LanguageModelV4Message {
  if (message.role !== "assistant" || !message.content.some(({ type }) => type === "reasoning"))
    return message;
  const isTaken = (options: SharedV4ProviderOptions | undefined): boolean =>
    options?.[provider] !== undefined &&
    (provider !== "openai" || options["kontor"]?.["credentialId"] === credentialId);
  return {
    ...message,
    content: message.content.filter((part) => part.type !== "reasoning" || isTaken(part.providerOptions)),
  };
}
