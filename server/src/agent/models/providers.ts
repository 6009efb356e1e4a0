/**
 * A model of a provider, as the AI SDK knows it. This folder alone imports that. What the SDK makes of a model takes as
 * long as a short answer of it, so it is kept; whose key a call is made with and what way it goes is the call's own.
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
  /** Of the key. */
  credentialId: string;
  provider: Provider;
  /** Null: the provider's own. */
  baseUrl: string | null;
  apiKey: string;
  /** The provider's name of the model. */
  id: string;
}

type Make = (address: Pick<ModelAddress, "baseUrl" | "id">, apiKey: string, fetch: Fetch) => LanguageModelV4;

/** Addresses are always given: the SDK would else look into the environment for one. */
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

/** Stands where a kept model has a key; each call's own headers are put in its place. */
const noKey = "none";
const keptMax = 200;
const kept = new Map<string, LanguageModelV4>();
const way = new AsyncLocalStorage<Fetch>();

function modelOf({ provider, baseUrl, id }: ModelAddress): LanguageModelV4 {
  const name = JSON.stringify([provider, baseUrl, id]);
  const model =
    kept.get(name) ?? makers[provider]({ baseUrl, id }, noKey, (...given) => way.getStore()!(...given));
  // The one asked longest ago goes.
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
 * Anthropic caches a prompt only up to its marks. The first mark covers the tools and the system prompt, the second the
 * whole conversation, which the next step repeats. System messages behind the first, such as remembered facts, change
 * more often and have no mark. Other providers cache by themselves, and some take one system message only.
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
