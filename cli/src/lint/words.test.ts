import { expect, test } from "vitest";
import { findWords, isBareParticiple } from "./words.ts";

const find = (file: string, ...lines: string[]): string[] =>
  findWords(lines.join("\n"), file).map(({ line, kind, text }) => `${line} ${kind}: ${text}`);

test("lists comments that begin with a listed word, with their lines", () => {
  expect(
    find(
      "a.ts",
      "/** What a run needs. */",
      "const a = 1; // as in b.ts",
      "/**",
      " * The first sentence ends here.",
      " * Its second one is listed.",
      " *",
      " * - of the list",
      " */",
      "// The subject comes first, of course.",
      "// Where it continues on the next line, the sentence ends.",
      'const b = a / 2, c = "// who"; const d = /[/*] one/; // that',
    ),
  ).toEqual([
    "1 comment: What a run needs.",
    "2 comment: as in b.ts",
    "5 comment: Its second one is listed.",
    "7 comment: of the list",
    "10 comment: Where it continues on the next line, the sentence ends.",
    "11 comment: that",
  ]);
});

test("accepts compounds, longer words, and listed words within a sentence", () => {
  expect(find("a.ts", "// One-shot tokens that expire. Ofcom as well.", "// Whatever runs, ends.")).toEqual(
    [],
  );
});

test("lists titles of tests with modifiers, type arguments and tables", () => {
  expect(
    find(
      "a.test.ts",
      'test("who waits, waits", () => {});',
      "test.each<Map<string, number>>([[1, (2)]])(",
      "  `where ${1 + 1} are`,",
      ");",
      'describe.skipIf(process.env["What is"])("Those of a room", () => {});',
      'run("who is no title");',
      'pattern.test("one of them");',
    ),
  ).toEqual(["1 title: who waits, waits", "3 title: where … are", "5 title: Those of a room"]);
});

test("lists texts in source code, joined and with placeholders, and no fragments or other languages", () => {
  expect(
    find(
      "a.ts",
      'const a = "The volume is full. " + // a comment',
      '  "Its add-on stops.";',
      "const b = `What ${f({ c: `${1}` })} holds is kept`;",
      'const c = "where a = 1"; sql`WHERE a = 1 AND b = 2`; const d = "Of it";',
    ),
  ).toEqual(["1 text: Its add-on stops.", "3 text: What … holds is kept"]);
});

test("lists headings, list items, cells and sentences of a page, and leaves out code blocks", () => {
  expect(
    find(
      "docs/a.md",
      "# What you need",
      "A sentence. **That** is one.",
      "```sh",
      "# What is code",
      "```",
      "| Name | Where |",
      "| ---- | ----- |",
      "- `a`: fine",
      "  1. as before",
    ),
  ).toEqual(["1 page: What you need", "2 page: **That** is one.", "6 page: Where", "9 page: as before"]);
});

test("lists descriptions of an API document, and leaves out examples", () => {
  const document = { paths: { "/a": { summary: "Get it", description: "It is.\n\nOf use." } }, example: {} };
  document.example = { description: "What for" };
  expect(find("openapi/a.json", ...JSON.stringify(document, null, 2).split("\n"))).toEqual([
    "5 openapi: Of use.",
  ]);
});

test("lists comments of C and of scripts", () => {
  expect(find("a.c", "/*", " * The size.", " */", "char c = '/'; /* what remains */")).toEqual([
    "4 comment: what remains",
  ]);
  expect(find("a.sh", "#!/bin/sh", "# What it does", "echo '# who'")).toEqual(["2 comment: What it does"]);
});

test("lists types, functions and files whose name is a bare participle", () => {
  expect(
    find(
      "lib/held.ts",
      "interface Asked {}",
      "type Said = 1;",
      "const taken = async (a: number): Promise<number> => a;",
      "function settled() {}",
      "const kept = 1;",
      "function settledRuns(held: number) {}",
    ),
  ).toEqual(["1 name: held", "1 name: Asked", "2 name: Said", "3 name: taken", "4 name: settled"]);
});

test.each([
  ["ended", true],
  ["Going", false],
  ["feed", false],
  ["speed", false],
  ["seed", false],
  ["HeldVolume", false],
])("decides whether %s is a bare participle: %s", (name, expected) => {
  expect(isBareParticiple(name)).toBe(expected);
});
