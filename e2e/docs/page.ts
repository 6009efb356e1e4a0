/**
 * A page of the documentation as a reader follows it: shell blocks in their order, and the output that the page shows.
 */
import { readFileSync } from "node:fs";

export interface Section {
  title: string;
  /** Shell blocks with their text unchanged. */
  blocks: Block[];
}

interface Block {
  code: string;
  /** Lines of output that the page shows, in their order; `…` stands for anything. */
  shown: string[];
}

export function readPage(file: string): { text: string; sections: Section[] } {
  const text = readFileSync(new URL(`../../${file}`, import.meta.url), "utf8");
  const sections = text.split(/^## /m).map((part, index) => ({
    title: index === 0 ? "opening" : part.slice(0, part.indexOf("\n")),
    blocks: blocksOf(part),
  }));
  return { text, sections };
}

/**
 * Returns the blocks of a page. A page shows output by lines `# → …` within a shell block, and by a `text` block that
 * follows a shell block.
 */
function blocksOf(markdown: string): Block[] {
  const blocks: Block[] = [];
  for (const [, language, code = ""] of markdown.matchAll(/^```(\w+)\n(.*?)^```$/gms)) {
    if (language === "sh")
      blocks.push({ code, shown: [...code.matchAll(/^# → (.*)$/gm)].map(([, line]) => line!) });
    else if (language === "text")
      blocks.at(-1)?.shown.push(...code.split("\n").filter((line) => line !== ""));
  }
  return blocks;
}

/**
 * Returns the first line of `shown` that the output lacks, or that does not follow the line before it. Returns
 * undefined if the output has all lines.
 */
export function findMissing(shown: readonly string[], output: string): string | undefined {
  let rest = output;
  for (const line of shown) {
    const found = new RegExp(
      line
        .split("…")
        .map((part) => RegExp.escape(part))
        .join("[^]*?"),
    ).exec(rest);
    if (!found) return line;
    rest = rest.slice(found.index + found[0].length);
  }
  return undefined;
}
