import { expect, test } from "vitest";
import {
  PictureBudget,
  pictureMaxBytes,
  type PicturePart,
  resultOf,
  stepPictures,
  toPicture,
  withoutPictures,
} from "./pictures.ts";
import { resultMaxBytes } from "./result.ts";

const png = Buffer.concat([Buffer.from("\x89PNG\r\n\x1a\n", "latin1"), Buffer.alloc(100)]);
const picture = toPicture(png) as PicturePart;
const text = (value: string) => ({ type: "text" as const, text: value });
const hide = (value: string) => value.replaceAll("secret", "…");

test("recognises the four picture formats by their first bytes", () => {
  const typeOf = (head: string) => toPicture(Buffer.from(`${head}${"x".repeat(20)}`, "latin1"))?.mediaType;
  expect(picture).toEqual({
    type: "file",
    mediaType: "image/png",
    data: { type: "data", data: png.toString("base64") },
  });
  expect(typeOf("\xff\xd8\xff\xe0")).toBe("image/jpeg");
  expect(typeOf("GIF89a")).toBe("image/gif");
  expect(typeOf("RIFF\x00\x00\x00\x00WEBP")).toBe("image/webp");
  for (const head of ["", "<svg ", "BM", "RIFF\x00\x00\x00\x00WAVE", "%PDF-1.7"])
    expect(typeOf(head)).toBeUndefined();
  expect(toPicture(Buffer.alloc(0))).toBeUndefined();
});

test("refuses a picture above the maximum size", () => {
  const withSize = (bytes: number) => Buffer.concat([png, Buffer.alloc(bytes - png.length)]);
  expect(toPicture(withSize(pictureMaxBytes))).toBeDefined();
  expect(toPicture(withSize(pictureMaxBytes + 1))).toBeUndefined();
});

test("keeps pictures at their position between texts, and removes secrets from the texts", () => {
  const result = resultOf([text("a"), text("the secret"), picture, text("b")], hide);
  expect(result.text).toBe("a\n\nthe …\n\n[image of type image/png, 108 bytes]\n\nb");
  expect(result.content).toEqual([text("a\n\nthe …"), picture, text("b")]);
  expect(withoutPictures(result.content!)).toBe(
    "a\n\nthe …\n\n[image of type image/png, 108 bytes, left out]\n\nb",
  );
  expect(resultOf([text("a")], hide)).toEqual({ text: "a" });
});

test("cuts a long text and keeps the pictures after the text", () => {
  const { text: told, content } = resultOf([text("x".repeat(200_000)), picture], hide);
  expect(Buffer.byteLength(told)).toBeLessThan(resultMaxBytes + 100);
  expect(content).toEqual([text(told), picture]);
});

test("replaces further pictures by text once a step has reached its maximum of pictures or bytes", () => {
  const budget = new PictureBudget(stepPictures);
  const fitted = budget.fit(Array.from({ length: 10 }, () => picture));
  expect(fitted.filter(({ type }) => type === "file")).toHaveLength(8);
  expect(fitted.at(-1)).toEqual(text("[image of type image/png, 108 bytes, left out: too many in one step]"));
  const large = { ...picture, data: { type: "data" as const, data: "A".repeat(stepPictures.bytes / 2 + 1) } };
  expect(new PictureBudget(stepPictures).fit([large, large]).map(({ type }) => type)).toEqual([
    "file",
    "text",
  ]);
});
