/**
 * Pictures in tool results. Pictures are bounded, and keep their position between the texts. Their bytes decide whether
 * they are pictures, because providers refuse a request with a damaged picture. Models without vision get only the
 * texts.
 */
import { cutOff, isWithin } from "./result.ts";

/** Maximum size of a picture: in base64 below 5 MB, the lowest maximum of all providers (Anthropic). */
export const pictureMaxBytes = 3 * 1024 ** 2;

export interface PictureLimit {
  count: number;
  /** Maximum size of all pictures in base64. */
  bytes: number;
}
/** Maximum of pictures in one step of a run. A single picture of the maximum size fits. */
export const stepPictures: PictureLimit = { count: 8, bytes: 4 * 1024 ** 2 };

export interface TextPart {
  type: "text";
  text: string;
}

/** A picture in the format of the AI SDK, in which the whole conversation is stored. */
export interface PicturePart {
  type: "file";
  mediaType: string;
  /** Bytes of the picture in base64. */
  data: { type: "data"; data: string };
}

export type ToolContent = readonly (TextPart | PicturePart)[];

const latin = (bytes: Uint8Array, from: number, to: number) =>
  Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("latin1", from, to);

const formats: readonly [mediaType: string, isIt: (bytes: Uint8Array) => boolean][] = [
  ["image/png", (bytes) => latin(bytes, 0, 8) === "\x89PNG\r\n\x1a\n"],
  ["image/jpeg", (bytes) => latin(bytes, 0, 3) === "\xff\xd8\xff"],
  ["image/gif", (bytes) => ["GIF87a", "GIF89a"].includes(latin(bytes, 0, 6))],
  ["image/webp", (bytes) => latin(bytes, 0, 4) === "RIFF" && latin(bytes, 8, 12) === "WEBP"],
];

/**
 * Returns the bytes as a picture. Returns undefined if they are not a PNG, JPEG, GIF or WebP, or if there are too many.
 */
export function toPicture(bytes: Uint8Array): PicturePart | undefined {
  if (bytes.length > pictureMaxBytes) return undefined;
  const mediaType = formats.find(([, isIt]) => isIt(bytes))?.[0];
  const data = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("base64");
  return mediaType === undefined ? undefined : { type: "file", mediaType, data: { type: "data", data } };
}

export const base64Bytes = (data: string): number => Buffer.byteLength(data, "base64");

/** Describes a picture in words. `why` gives the reason why the model does not get the picture. */
function describePicture({ mediaType, data }: PicturePart, why?: string): string {
  const end = why === undefined ? "" : `, ${why}`;
  return `[image of type ${mediaType}, ${base64Bytes(data.data)} bytes${end}]`;
}

export const isPicture = (part: TextPart | PicturePart): part is PicturePart => part.type === "file";

/** Joins the parts of a result. `content` is set if a part is a picture. `hide` removes secrets from texts. */
export function resultOf(
  parts: ToolContent,
  hide: (text: string) => string,
): { text: string; content?: ToolContent } {
  const text = hide(parts.map((part) => (isPicture(part) ? describePicture(part) : part.text)).join("\n\n"));
  if (!parts.some(isPicture)) return { text: cutOff(text) };
  // In a cut text, the positions of the pictures are lost, so the pictures follow the text.
  if (!isWithin(text))
    return {
      text: cutOff(text),
      content: [{ type: "text", text: cutOff(text) }, ...parts.filter(isPicture)],
    };
  return {
    text,
    content: mergeTexts(parts).map((part) => (isPicture(part) ? part : toText(hide(part.text)))),
  };
}

const toText = (text: string): TextPart => ({ type: "text", text });

function mergeTexts(parts: ToolContent): ToolContent {
  const together: (TextPart | PicturePart)[] = [];
  for (const part of parts) {
    const last = together.at(-1);
    if (isPicture(part) || last === undefined || isPicture(last)) together.push(part);
    else together[together.length - 1] = toText(`${last.text}\n\n${part.text}`);
  }
  return together;
}

/** Returns the parts as text, for a model that gets no pictures. */
export function withoutPictures(content: ToolContent, why = "left out"): string {
  return content.map((part) => (isPicture(part) ? describePicture(part, why) : part.text)).join("\n\n");
}

/** Budget of pictures under a limit. */
export class PictureBudget {
  #count: number;
  #bytes: number;

  constructor({ count, bytes }: PictureLimit) {
    this.#count = count;
    this.#bytes = bytes;
  }

  /** Subtracts a picture from the budget. Returns false if the picture does not fit. */
  take({ data }: PicturePart): boolean {
    if (this.#count === 0 || data.data.length > this.#bytes) return false;
    this.#count -= 1;
    this.#bytes -= data.data.length;
    return true;
  }

  /** Returns the content with texts in place of pictures that do not fit. */
  fit(content: ToolContent): ToolContent {
    return content.map((part) =>
      isPicture(part) && !this.take(part)
        ? toText(describePicture(part, "left out: too many in one step"))
        : part,
    );
  }
}
