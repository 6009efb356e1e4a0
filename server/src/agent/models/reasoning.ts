/**
 * Reasoning that precedes tool calls. Anthropic and OpenAI expect the reasoning back with the tools' results, signed or
 * encrypted. Other providers expect none. OpenAI encrypts reasoning for the account of the key, so no other account
 * receives it.
 */
import type { LanguageModelV4Message, SharedV4ProviderOptions } from "@ai-sdk/provider";
import type { ModelAddress } from "./providers.ts";

export type Metadata = Record<string, string>;

export interface ReasoningPart {
  type: "reasoning";
  text: string;
  providerOptions: SharedV4ProviderOptions;
}

/** Metadata fields that are sent back to each provider. */
const kept: Partial<Record<ModelAddress["provider"], readonly string[]>> = {
  anthropic: ["signature", "redactedData"],
  openai: ["itemId", "reasoningEncryptedContent", "phase"],
};

/** Returns the metadata of a part that is sent back to the part's provider. */
export function metadataOf(
  { providerMetadata }: { providerMetadata?: unknown },
  { provider }: ModelAddress,
): [string, string][] {
  const said = (providerMetadata as Record<string, Record<string, unknown>> | undefined)?.[provider] ?? {};
  return (kept[provider] ?? []).flatMap((name): [string, string][] =>
    typeof said[name] === "string" ? [[name, said[name]]] : [],
  );
}

export function toReasoningPart(
  { text, metadata }: { text: string; metadata: Metadata },
  { provider, credentialId }: ModelAddress,
): ReasoningPart {
  return { type: "reasoning", text, providerOptions: { [provider]: metadata, kontor: { credentialId } } };
}

/** Returns the phase of a text for its provider. OpenAI's models mark text as final answer or commentary. */
export function phaseOf(
  { metadata }: { metadata: Metadata },
  { provider }: ModelAddress,
): { providerOptions?: SharedV4ProviderOptions } {
  const { phase } = metadata;
  return phase === undefined ? {} : { providerOptions: { [provider]: { phase } } };
}

/** Removes reasoning that this model does not accept. */
export function keepAcceptedReasoning(
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
