/** A model of a provider, as the AI SDK knows it. This folder alone imports that. */
import { createAnthropic } from "@ai-sdk/anthropic";
import { createMistral } from "@ai-sdk/mistral";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import type { LanguageModelV4, LanguageModelV4CallOptions } from "@ai-sdk/provider";
import type { Provider } from "../agents/config.ts";
import type { Fetch } from "./fetch.ts";

export interface ModelAddress {
  /** Of the key. */
  credentialId: string;
  provider: Provider;
  /** Null: the provider's own. */
  baseUrl: string | null;
  apiKey: string;
  /** The provider's name of the model. */
  id: string;
}

type Make = (address: ModelAddress, fetch: Fetch) => LanguageModelV4;

/** Addresses are always given: the SDK would else look into the environment for one. */
const makers: Record<Provider, Make> = {
  anthropic: ({ baseUrl, apiKey, id }, fetch) =>
    createAnthropic({ baseURL: baseUrl ?? "https://api.anthropic.com/v1", apiKey, fetch })(id),
  openai: ({ baseUrl, apiKey, id }, fetch) =>
    createOpenAI({ baseURL: baseUrl ?? "https://api.openai.com/v1", apiKey, fetch })(id),
  mistral: ({ baseUrl, apiKey, id }, fetch) =>
    createMistral({ baseURL: baseUrl ?? "https://api.mistral.ai/v1", apiKey, fetch })(id),
  openai_compatible: ({ baseUrl, apiKey, id }, fetch) =>
    createOpenAICompatible({
      name: "openai_compatible",
      baseURL: baseUrl ?? "",
      apiKey,
      fetch,
      includeUsage: true,
      supportsStructuredOutputs: true,
    })(id),
};

export function openModel(address: ModelAddress, fetch: Fetch): LanguageModelV4 {
  return makers[address.provider](address, fetch);
}

/** Names by which the SDK knows whether a model of OpenAI's thinks. */
const openaiNames = /^(o\d|gpt-\d|chatgpt-)/;

/**
 * OpenAI is asked to store nothing: what a model thought is then sealed in the answer and goes back with the next
 * request, for accounts that keep nothing as for all others, and what an end user said stays here alone.
 */
export function optionsOf(
  { provider, id }: ModelAddress,
  reasoning: LanguageModelV4CallOptions["reasoning"],
): Pick<LanguageModelV4CallOptions, "providerOptions"> {
  if (provider !== "openai") return {};
  const isThinking = reasoning !== undefined && reasoning !== "none";
  return {
    providerOptions: {
      openai: { store: false, ...(isThinking && !openaiNames.test(id) ? { forceReasoning: true } : {}) },
    },
  };
}
