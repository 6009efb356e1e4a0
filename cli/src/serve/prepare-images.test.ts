import { PassThrough } from "node:stream";
import { expect, test } from "vitest";
import type { ImageProgress } from "./api.ts";
import { askToPrepare, waitForImages } from "./prepare-images.ts";

function terminal() {
  const [input, output] = [new PassThrough(), new PassThrough()];
  let shown = "";
  output.on("data", (text: Buffer) => (shown += text.toString()));
  return { input, output, shown: () => shown };
}

test("prepares images only if the operator types yes", async () => {
  for (const [typed, expected] of [
    ["y", true],
    ["YES", true],
    ["", false],
    ["nope", false],
  ] as const) {
    const { input, output, shown } = terminal();
    const asked = askToPrepare({ input, output }, 20_000);
    input.write(`${typed}\n`);
    expect(await asked).toBe(expected);
    expect(shown()).toContain("[y/N, no after 20 s]");
  }
});

test("prepares no images if the operator does not respond in time", async () => {
  const { input, output } = terminal();
  expect(await askToPrepare({ input, output }, 50)).toBe(false);
});

test("shows the progress of each image until it is ready or failed, with the reason of a failure", async () => {
  const image = (name: string, change: Partial<ImageProgress>): ImageProgress => ({
    name,
    state: "waiting",
    fraction: 0,
    step: "waiting",
    error: null,
    ...change,
  });
  const answers = [
    [image("postgres-15", {}), image("node:22-slim", {})],
    [image("postgres-15", {})],
    [image("postgres-15", { state: "preparing", fraction: 0.4, step: "installing packages" })],
    [image("postgres-15", { state: "ready" })],
    [image("node:22-slim", { state: "failed", error: "The mirror does not respond." })],
  ];
  const shown: string[] = [];
  await waitForImages("http://unused", {
    read: async () => answers.shift() ?? [],
    start: (title) => ({
      update: (detail, fraction) => shown.push(`${title} ${detail} ${fraction ?? ""}`.trim()),
      done: () => shown.push(`${title} done`),
      fail: (detail) => shown.push(`${title} failed: ${detail}`),
    }),
  });
  expect(shown).toEqual([
    "Image postgres-15 waiting for the templates of sandboxes",
    "Image postgres-15 installing packages 0.4",
    "Image postgres-15 done",
    "Image node:22-slim failed: The mirror does not respond. The first use tries again.",
  ]);
});
