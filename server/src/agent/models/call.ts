/**
 * One call of a model. What it says is handed on as it comes; what comes of it is whole, or a failure that says
 * whether another try may help. A server of models is somebody else's program: its answer is bounded, its sentences
 * are shortened, and whatever it repeats of the key is taken out.
 */
import type { LanguageModelV4CallOptions } from "@ai-sdk/provider";
import { type Answer, Gathering, type Piece } from "./answer.ts";
import { explain } from "./failure.ts";
import type { Fetch } from "./fetch.ts";
import { type ModelAddress, optionsOf, streamOf, withCacheMarks } from "./providers.ts";
import { thoughtsFor } from "./thoughts.ts";
import { Wire } from "./wire.ts";

export type ModelOptions = Omit<LanguageModelV4CallOptions, "providerOptions"> & { abortSignal: AbortSignal };

/** Throws a `ModelFailure`, or what the signal was aborted with. */
export async function callModel(
  address: ModelAddress,
  fetch: Fetch,
  options: ModelOptions,
  onPiece: (piece: Piece) => void,
): Promise<Answer> {
  const wire = new Wire(fetch);
  try {
    const { stream } = await streamOf(address, wire.fetch, {
      ...options,
      prompt: withCacheMarks(
        address,
        options.prompt.map((message) => thoughtsFor(address, message)),
      ),
      ...optionsOf(address, options.reasoning),
    });
    const gathering = new Gathering(address, onPiece);
    for await (const part of stream) {
      if (gathering.add(part)) wire.heard();
    }
    return gathering.answer();
  } catch (error) {
    options.abortSignal.throwIfAborted();
    throw explain(error, address.apiKey);
  }
}
