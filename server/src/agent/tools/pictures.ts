/**
 * Pictures in tool results: bounded, and kept between the texts around them. They are recognised by their bytes, because
 * providers refuse a request with a damaged picture. Models without vision get only the texts.
 */
import { cutOff, isWithin } from "./result.ts";

/** Below 5 MB in base64, the lowest maximum of all providers (Anthropic). */
export const pictureMaxBytes = 3 * 1024 ** 2;

export interface PictureLimit {
  count: number;
  /** Maximum in base64. */
  bytes: number;
}
/** Maximum for one step of a run. A single picture of the maximum size fits. */
export const stepPictures: PictureLimit = { count: 8, bytes: 4 * 1024 ** 2 };

export interface TextPart {
  type: "text";
  text: string;
}

/** Stored in the AI SDK's format, like the rest of a conversation. */
export interface PicturePart {
  type: "file";
  mediaType: string;
  /** Base64. */
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

/** Undefined if the bytes are not a PNG, JPEG, GIF or WebP, or too many. */
export function toPicture(bytes: Uint8Array): PicturePart | undefined {
  if (bytes.length > pictureMaxBytes) return undefined;
  const mediaType = formats.find(([, isIt]) => isIt(bytes))?.[0];
  const data = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("base64");
  return mediaType === undefined ? undefined : { type: "file", mediaType, data: { type: "data", data } };
}

export const base64Bytes = (data: string): number => Buffer.byteLength(data, "base64");

/** Describes a picture in words. `why` says why the model does not get it. */
function describePicture({ mediaType, data }: PicturePart, why?: string): string {
  const end = why === undefined ? "" : `, ${why}`;
  return `[image of type ${mediaType}, ${base64Bytes(data.data)} bytes${end}]`;
}

export const isPicture = (part: TextPart | PicturePart): part is PicturePart => part.type === "file";

/** Joins the parts of a result. `content` is set if there are pictures among them. `hide` removes secrets from texts. */
export function resultOf(
  parts: ToolContent,
  hide: (text: string) => string,
): { text: string; content?: ToolContent } {
  const text = hide(parts.map((part) => (isPicture(part) ? describePicture(part) : part.text)).join("\n\n"));
  if (!parts.some(isPicture)) return { text: cutOff(text) };
  // A cut text has lost the positions of the pictures.
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

/** Counts pictures against a limit. */
export class PictureBudget {
  #count: number;
  #bytes: number;

  constructor({ count, bytes }: PictureLimit) {
    this.#count = count;
    this.#bytes = bytes;
  }

  /** Takes a picture's share. False if it does not fit. */
  take({ data }: PicturePart): boolean {
    if (this.#count === 0 || data.data.length > this.#bytes) return false;
    this.#count -= 1;
    this.#bytes -= data.data.length;
    return true;
  }

  /** Replaces pictures that do not fit by text. */
  fit(content: ToolContent): ToolContent {
    return content.map((part) =>
      isPicture(part) && !this.take(part)
        ? toText(describePicture(part, "left out: too many in one step"))
        : part,
    );
  }
}
