import { expect, test } from "vitest";
import { lineFeeds } from "./lines.ts";

async function through(pieces: readonly string[]): Promise<string> {
  const bytes = pieces.map((piece) => new TextEncoder().encode(piece));
  return new Response(ReadableStream.from(bytes).pipeThrough(lineFeeds())).text();
}

test("converts every line ending to a line feed, wherever the chunks are split", async () => {
  const said = "data: a\r\n\r\n\rdata: \u00e4\n\rb\n\n\r\r\n";
  const wanted = said.replaceAll(/\r\n|\r/g, "\n");
  for (let at = 0; at <= said.length; at += 1)
    expect(await through([said.slice(0, at), said.slice(at)])).toBe(wanted);
  expect(await through(said.split(""))).toBe(wanted);
  expect(await through(["no", " lines"])).toBe("no lines");
});
