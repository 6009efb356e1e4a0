/** A model of a provider, as the AI SDK knows it. This folder alone imports that. */
import { createAnthropic } from "@ai-sdk/anthropic";
import { createMistral } from "@ai-sdk/mistral";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import type { LanguageModelV4 } from "@ai-sdk/provider";
import type { Provider } from "../agents/config.ts";
import type { Fetch } from "./fetch.ts";
import { withLineFeeds } from "./lines.ts";

export interface ModelAddress {
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
  return makers[address.provider](address, withLineFeeds(fetch));
}
