/**
 * Models of the AI SDK. Only this folder imports the SDK. Creating a model takes as long as reading a short answer, so
 * models are cached. The key and the fetch belong to each call.
 */
import { AsyncLocalStorage } from "node:async_hooks";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createMistral } from "@ai-sdk/mistral";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import type { LanguageModelV4, LanguageModelV4CallOptions } from "@ai-sdk/provider";
import type { Provider } from "../agents/config.ts";
import { echoModel } from "./echo.ts";
import type { Fetch } from "./fetch.ts";

export interface ModelAddress {
  /** Id of the credential that contains the key. */
  credentialId: string;
  provider: Provider;
  /** Base URL of the provider. Null for the provider's default address. */
  baseUrl: string | null;
  apiKey: string;
  /** The provider's name for the model. */
  id: string;
}

type Make = (address: Pick<ModelAddress, "baseUrl" | "id">, apiKey: string, fetch: Fetch) => LanguageModelV4;

/** Every provider gets an explicit address. Otherwise the SDK would read an address from the environment. */
const makers: Record<Provider, Make> = {
  anthropic: ({ baseUrl, id }, apiKey, fetch) =>
    createAnthropic({ baseURL: baseUrl ?? "https://api.anthropic.com/v1", apiKey, fetch })(id),
  openai: ({ baseUrl, id }, apiKey, fetch) =>
    createOpenAI({ baseURL: baseUrl ?? "https://api.openai.com/v1", apiKey, fetch })(id),
  mistral: ({ baseUrl, id }, apiKey, fetch) =>
    createMistral({ baseURL: baseUrl ?? "https://api.mistral.ai/v1", apiKey, fetch })(id),
  openai_compatible: ({ baseUrl, id }, apiKey, fetch) =>
    createOpenAICompatible({
      name: "openai_compatible",
      baseURL: baseUrl ?? "",
      apiKey,
      fetch,
      includeUsage: true,
      supportsStructuredOutputs: true,
    })(id),
  echo: ({ id }) => echoModel(id),
};

/** API key of a cached model. The headers of each call override this key. */
const noKey = "none";
const keptMax = 200;
const kept = new Map<string, LanguageModelV4>();
const way = new AsyncLocalStorage<Fetch>();

function modelOf({ provider, baseUrl, id }: ModelAddress): LanguageModelV4 {
  const name = JSON.stringify([provider, baseUrl, id]);
  const model =
    kept.get(name) ?? makers[provider]({ baseUrl, id }, noKey, (...given) => way.getStore()!(...given));
  // Evicts the least recently used model.
  kept.delete(name);
  kept.set(name, model);
  if (kept.size > keptMax) kept.delete(kept.keys().next().value!);
  return model;
}

export function streamOf(
  address: ModelAddress,
  fetch: Fetch,
  options: LanguageModelV4CallOptions,
): ReturnType<LanguageModelV4["doStream"]> {
  const { provider, apiKey } = address;
  const key: Record<string, string> =
    provider === "anthropic" ? { "x-api-key": apiKey } : { authorization: `Bearer ${apiKey}` };
  return way.run(fetch, async () => modelOf(address).doStream({ ...options, headers: key }));
}

/**
 * Returns the prompt with cache marks for Anthropic, which caches a prompt only up to its marks. The first mark covers
 * the tools and the system prompt. The second mark covers the whole conversation, which the next step repeats. System
 * messages behind the first, such as remembered facts, change more often and have no mark. Other providers cache
 * without marks, and some accept only one system message.
 */
export function withCacheMarks(
  { provider }: Pick<ModelAddress, "provider">,
  prompt: LanguageModelV4CallOptions["prompt"],
): LanguageModelV4CallOptions["prompt"] {
  if (provider !== "anthropic") return withOneSystem(prompt);
  const mark = { anthropic: { cacheControl: { type: "ephemeral" } } };
  return prompt.map((message, index) =>
    (message.role === "system" && index === 0) || index === prompt.length - 1
      ? { ...message, providerOptions: { ...message.providerOptions, ...mark } }
      : message,
  );
}

function withOneSystem(prompt: LanguageModelV4CallOptions["prompt"]): LanguageModelV4CallOptions["prompt"] {
  const texts = prompt.flatMap((message) => (message.role === "system" ? [message.content] : []));
  if (texts.length < 2) return prompt;
  const others = prompt.filter(({ role }) => role !== "system");
  return [{ role: "system", content: texts.join("\n\n") }, ...others];
}

/** Matches names that the SDK knows as OpenAI's reasoning models. */
const openaiNames = /^(o\d|gpt-\d|chatgpt-)/;

/**
 * Returns the options that make OpenAI store nothing. The model's reasoning is then encrypted in the answer and goes
 * back with the next request. So accounts with zero data retention work as all others, and texts of end users stay on
 * this server.
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
