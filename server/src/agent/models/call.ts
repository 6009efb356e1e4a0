/**
 * Calls a model. Deltas are emitted as they arrive. The result is a complete answer, or a failure that states whether a
 * retry may help. The server is not trusted: the answer is bounded, error texts are truncated, and the key is removed
 * from them.
 */
import type { LanguageModelV4CallOptions } from "@ai-sdk/provider";
import { type Answer, AnswerAssembler, type Piece } from "./answer.ts";
import { explain, ModelFailure } from "./failure.ts";
import type { Fetch } from "./fetch.ts";
import { picturesIn } from "./messages.ts";
import { type ModelAddress, optionsOf, streamOf, withCacheMarks } from "./providers.ts";
import { SilenceTimeout } from "./silence.ts";
import { keepAcceptedReasoning } from "./reasoning.ts";
import { takesPictures, withToolPictures } from "./pictures/by-provider.ts";
import { Wire } from "./wire.ts";

export type ModelOptions = Omit<LanguageModelV4CallOptions, "providerOptions"> & {
  abortSignal: AbortSignal;
  /** Set if the agent's config states whether the model takes pictures. Overrides the list of known models. */
  takesPictures?: boolean | undefined;
  /** Called when the server refused the pictures of tools. The request is then repeated without pictures. */
  onPicturesRefused?: (() => void) | undefined;
  /** Timeout in seconds. The call fails if the server sends no byte for this time. */
  silenceSeconds?: number | undefined;
};

/** HTTP statuses with which servers refuse pictures. OpenRouter sends 404. */
const picturesRefused: readonly (number | undefined)[] = [400, 404, 413, 415, 422];

/**
 * Returns true if pictures may be the cause of the failure. A body of too many bytes (413) may come from pictures. The
 * run itself shortens a prompt of too many tokens.
 */
function mayRefusePictures({ kind, status }: ModelFailure): boolean {
  return picturesRefused.includes(status) && (kind !== "too_long" || status === 413);
}

/** Calls a model and returns its answer. Throws a `ModelFailure`, or the reason of the aborted signal. */
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
    // The request is repeated without pictures. Otherwise a picture that the server cannot read would fail every later
    // run of the session.
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
  const silence = new SilenceTimeout(silenceSeconds);
  const wire = new Wire(fetch, () => silence.restart());
  try {
    const { stream } = await streamOf(address, wire.fetch, {
      ...options,
      abortSignal: AbortSignal.any([options.abortSignal, silence.signal]),
      prompt: withCacheMarks(
        address,
        options.prompt.map((message) => keepAcceptedReasoning(address, message)),
      ),
      ...optionsOf(address, options.reasoning),
    });
    const gathering = new AnswerAssembler(address, onPiece, () => wire.isDone);
    for await (const part of stream) {
      if (gathering.add(part)) wire.onContent();
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
