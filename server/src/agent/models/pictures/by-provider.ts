/**
 * Converts pictures in tool results for each provider. Anthropic and OpenAI accept pictures within the result. Other
 * chat completions accept only text there, so a user message with the pictures follows. Mistral rejects such a message
 * after a result, so a note replaces the picture. Models without vision get the same note.
 */
import { withoutPictures } from "../../tools/pictures.ts";
import { mapContent, type Message, picturesIn } from "../messages.ts";
import type { ModelAddress } from "../providers.ts";

/** Patterns of names of models with vision. A model with any other name needs `images: true` in the agent's config. */
const known: Record<ModelAddress["provider"], RegExp | undefined> = {
  // All generations of Claude but the first accept pictures.
  anthropic: /^(?!claude-(?:instant|[12]\b|3-5-haiku))/,
  openai: /^(?:gpt-4o|gpt-4\.[15]|gpt-4-turbo|gpt-[5-9]|chatgpt-4o|o1(?!-(?:mini|preview))|o3(?!-mini)|o4)/,
  mistral: undefined,
  echo: undefined,
  openai_compatible:
    /(?:^|[/_.:-])(?:vl|vision|llava|pixtral|gpt-4o|gpt-5|claude|gemini|gemma-?[34]|llama-?4|internvl|minicpm-v|qwen\d?(?:\.\d)?-?vl)/i,
};

/** Returns true if the model takes pictures. `setting`: `images` of the agent's config. */
export function takesPictures(
  { provider, id }: Pick<ModelAddress, "provider" | "id">,
  setting: boolean | undefined,
): boolean {
  return provider !== "mistral" && (setting ?? known[provider]?.test(id) ?? false);
}

export function withToolPictures(
  provider: ModelAddress["provider"],
  isTaken: boolean,
  prompt: readonly Message[],
): Message[] {
  if (!isTaken) return prompt.map((message) => mapContent(message, (content) => withoutPictures(content)));
  if (provider !== "openai_compatible") return [...prompt];
  return prompt.flatMap((message): Message[] => {
    const pictures = picturesIn(message);
    if (pictures.length === 0) return [message];
    const results = mapContent(message, (content) => withoutPictures(content, "shown in the next message"));
    const text = `Images in the results of the tools, in their order: ${pictures.length}.`;
    return [results, { role: "user", content: [{ type: "text", text }, ...pictures] }];
  });
}
