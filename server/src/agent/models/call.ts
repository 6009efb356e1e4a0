/**
 * One call of a model. What it says is handed on as it comes; what comes of it is whole, or a failure that says
 * whether another try may help. A server of models is somebody else's program: its answer is bounded, its sentences
 * are shortened, and whatever it repeats of the key is taken out.
 */
import type { LanguageModelV4CallOptions } from "@ai-sdk/provider";
import { type Answer, Gathering, type Piece } from "./answer.ts";
import { explain, ModelFailure } from "./failure.ts";
import type { Fetch } from "./fetch.ts";
import { picturesIn } from "./messages.ts";
import { type ModelAddress, optionsOf, streamOf, withCacheMarks } from "./providers.ts";
import { Silence } from "./silence.ts";
import { thoughtsFor } from "./thoughts.ts";
import { takesPictures, withToolPictures } from "./pictures/by-provider.ts";
import { Wire } from "./wire.ts";

export type ModelOptions = Omit<LanguageModelV4CallOptions, "providerOptions"> & {
  abortSignal: AbortSignal;
  /** Overrides the list of models that are known to take pictures. */
  takesPictures?: boolean | undefined;
  /** Called when the server refused the pictures of tools, before the request is repeated without them. */
  onPicturesRefused?: (() => void) | undefined;
  /** Seconds without a byte of the response after which the call times out. */
  silenceSeconds?: number | undefined;
};

/** Statuses with which servers refuse pictures. OpenRouter sends 404. */
const picturesRefused: readonly (number | undefined)[] = [400, 404, 413, 415, 422];

/** A prompt of too many tokens is made shorter by the run. A body of too many bytes (413) has them in its pictures. */
function mayRefusePictures({ kind, status }: ModelFailure): boolean {
  return picturesRefused.includes(status) && (kind !== "too_long" || status === 413);
}

/** Throws a `ModelFailure`, or what the signal was aborted with. */
export async function callModel(
  address: ModelAddress,
  fetch: Fetch,
  { takesPictures: setting, onPicturesRefused, ...options }: ModelOptions,
  onPiece: (piece: Piece) => void,
): Promise<Answer> {
  const isTaken = takesPictures(address, setting);
  const prompt = withToolPictures(address.provider, isTaken, options.prompt);
  try {
    return await callOnce(address, fetch, { ...options, prompt }, onPiece);
  } catch (error) {
    // A picture that a server can't read would otherwise fail every later run of the session.
    const isRefused = error instanceof ModelFailure && mayRefusePictures(error);
    if (!isRefused || !isTaken || !options.prompt.some((message) => picturesIn(message).length > 0))
      throw error;
    onPicturesRefused?.();
    const words = withToolPictures(address.provider, false, options.prompt);
    return callOnce(address, fetch, { ...options, prompt: words }, onPiece);
  }
}

async function callOnce(
  address: ModelAddress,
  fetch: Fetch,
  { silenceSeconds, ...options }: Omit<ModelOptions, "takesPictures" | "onPicturesRefused">,
  onPiece: (piece: Piece) => void,
): Promise<Answer> {
  const silence = new Silence(silenceSeconds);
  const wire = new Wire(fetch, () => silence.end());
  try {
    const { stream } = await streamOf(address, wire.fetch, {
      ...options,
      abortSignal: AbortSignal.any([options.abortSignal, silence.signal]),
      prompt: withCacheMarks(
        address,
        options.prompt.map((message) => thoughtsFor(address, message)),
      ),
      ...optionsOf(address, options.reasoning),
    });
    const gathering = new Gathering(address, onPiece, () => wire.isDone);
    for await (const part of stream) {
      if (gathering.add(part)) wire.heard();
    }
    return gathering.answer();
  } catch (error) {
    options.abortSignal.throwIfAborted();
    silence.signal.throwIfAborted();
    throw explain(error, address.apiKey);
  } finally {
    silence.close();
  }
}
