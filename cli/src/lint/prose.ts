/**
 * Finds the prose of the repository: comments, test titles, pages, texts of the API documents and other texts in the
 * source (errors, descriptions, log lines). `words.ts` checks its sentences, and `draw-sentences.ts` draws some of them.
 *
 * Migrations are left out, because a landed migration never changes. The repositories in `e2e/apps` are test data.
 */
import { readFileSync } from "node:fs";
import path from "node:path";
import { inProduct, productRoot } from "../lib/places.ts";
import { run } from "../lib/run.ts";
import { isFunctionName, readTokens, type Token } from "./tokens.ts";

export type ProseKind = "comment" | "title" | "page" | "openapi" | "text";

export interface Sentence {
  /** Path below the repository's root. */
  file: string;
  line: number;
  kind: ProseKind;
  text: string;
  /** True for the first sentence of its paragraph. */
  first: boolean;
}

export interface DeclaredName {
  file: string;
  line: number;
  name: string;
}

/** A line of a paragraph, and its number in the file. */
interface Line {
  line: number;
  text: string;
}

type Paragraph = readonly Line[];

const isLeftOut = (file: string): boolean =>
  /^(e2e\/apps|server\/migrations)\/|(^|\/)node_modules\/|^package-lock\.json$/.test(file);

/** Lists the files of the repository with prose, tracked or new, sorted. Without `below`, lists all of them. */
export async function listProseFiles(below: readonly string[] = []): Promise<string[]> {
  const argv = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", "--"];
  const { code, output } = await run([...argv, ...below] as [string, ...string[]], { cwd: productRoot });
  if (code !== 0) throw new Error(`git ls-files ended with ${code}: ${output}`);
  return output
    .split("\n")
    .filter((file) => file !== "" && !isLeftOut(file) && readerOf(file) !== undefined)
    .toSorted();
}

/** Returns the text of a file, or an empty text if the file was deleted meanwhile. */
export function readSource(file: string): string {
  try {
    return readFileSync(inProduct(file), "utf8");
  } catch {
    return "";
  }
}

/** Returns the sentences of a file, in the order of their lines. */
export function findSentences(source: string, file: string): Sentence[] {
  const read = source === "" ? undefined : readerOf(file);
  return (read?.(source, file) ?? []).toSorted((a, b) => a.line - b.line);
}

/** Returns the names of types and functions that a file declares. */
export function findNames(source: string, file: string): DeclaredName[] {
  if (!/\.[jt]s$/.test(file)) return [];
  const tokens = readTokens(source).filter(({ type }) => type !== "comment");
  return tokens.flatMap((token, index) =>
    isDeclaration(tokens, index) ? [{ file, line: token.line, name: token.text }] : [],
  );
}

function isDeclaration(tokens: readonly Token[], index: number): boolean {
  const keyword = tokens[index - 1]?.text ?? "";
  if (tokens[index]?.type !== "name") return false;
  if (["interface", "class", "function"].includes(keyword)) return true;
  if (keyword === "type") return tokens[index + 1]?.text === "=" || tokens[index + 1]?.text === "<";
  return keyword === "const" && isFunctionName(tokens, index);
}

type Reader = (source: string, file: string) => Sentence[];

function readerOf(file: string): Reader | undefined {
  if (/^openapi\/.*\.json$/.test(file)) return readDocument;
  const name = path.basename(file);
  if (/\.(ts|mjs|js|c|h)$/.test(name)) return readCode;
  if (name.endsWith(".md")) return (source, page) => toSentences(splitMarkdown(source), page, "page");
  if (/\.(sh|py)$/.test(name) || ["kontor", "Makefile", "run", "commit-msg"].includes(name))
    return readScript;
  return undefined;
}

function readCode(source: string, file: string): Sentence[] {
  const tokens = readTokens(source);
  const isC = /\.[ch]$/.test(file);
  const isTest = /\.test\.ts$|conformance|\/test\/|^e2e\//.test(file);
  const code = tokens.filter(({ type }) => type !== "comment");
  const titles = isC ? new Set<Token>() : findTitles(code);
  const strings = isC || isTest ? [] : code.filter((token) => token.type === "string" && isProse(token.text));
  const sentencesOf = (kind: ProseKind, token: Token): Sentence[] =>
    toSentences([[{ line: token.line, text: token.text }]], file, kind);
  return [
    ...toSentences(joinComments(tokens).flatMap(splitComment), file, "comment"),
    ...[...titles].flatMap((title) => sentencesOf("title", title)),
    ...strings.filter((token) => !titles.has(token)).flatMap((token) => sentencesOf("text", token)),
  ];
}

/** True for a text for a reader, in contrast to keys, paths and fragments of other languages. */
const isProse = (text: string): boolean => /^\p{Lu}/u.test(text) && text.trim().split(/\s+/).length >= 3;

/**
 * Returns the titles of tests: the first text in the last parentheses of `test(…)`, `it(…)` or `describe(…)`, with
 * modifiers between.
 */
function findTitles(tokens: readonly Token[]): Set<Token> {
  const titles = new Set<Token>();
  tokens.forEach((token, index) => {
    const isCall = token.type === "name" && ["test", "it", "describe"].includes(token.text);
    if (!isCall || tokens[index - 1]?.text === ".") return;
    let at = index + 1;
    while (tokens[at]) {
      if (tokens[at]?.text === ".") at += 2;
      else if (tokens[at]?.text === "<") at = afterPair(tokens, at, "<", ">");
      else if (tokens[at]?.text !== "(") return;
      else if (tokens[at + 1]?.type === "string") return void titles.add(tokens[at + 1] as Token);
      else at = afterPair(tokens, at, "(", ")");
    }
  });
  return titles;
}

function afterPair(tokens: readonly Token[], start: number, open: string, close: string): number {
  let depth = 0;
  for (let at = start; at < tokens.length; at += 1) {
    if (tokens[at]?.text === open) depth += 1;
    if (tokens[at]?.text === close) depth -= 1;
    if (depth === 0) return at + 1;
  }
  return tokens.length;
}

/** Returns comments without their marks. Line comments on consecutive lines are one comment. */
function joinComments(tokens: readonly Token[]): Paragraph[] {
  const comments: Line[][] = [];
  let previous: Token | undefined;
  for (const token of tokens) {
    if (token.type === "comment") {
      const lines = token.text.startsWith("//")
        ? [{ line: token.line, text: token.text.replace(/^\/\/+ ?/, "") }]
        : token.text
            .replace(/^\/\*+/, "")
            .replace(/\*+\/$/, "")
            .split("\n")
            .map((text, index) => ({ line: token.line + index, text: text.replace(/^\s*\* ?/, "") }));
      const continues = previous?.text.startsWith("//") && token.text.startsWith("//") && token.ownLine;
      if (continues && previous?.line === token.line - 1) comments.at(-1)?.push(...lines);
      else comments.push(lines);
    }
    previous = token;
  }
  return comments;
}

const isDirective = (text: string): boolean =>
  /^\s*(oxlint|eslint|prettier|@ts|<reference|v8 ignore)/.test(text);

function splitComment(comment: Paragraph): Paragraph[] {
  const paragraphs: Line[][] = [[]];
  for (const { line, text } of comment) {
    // A line after four spaces is an example, as in Markdown.
    if (text.trim() === "" || /^ {4}/.test(text) || isDirective(text)) paragraphs.push([]);
    else {
      const item = /^\s*(?:[-*·] |\d+\. |@\w+ )/.exec(text)?.[0] ?? "";
      if (item !== "") paragraphs.push([]);
      paragraphs.at(-1)?.push({ line, text: text.slice(item.length).trim() });
    }
  }
  return paragraphs;
}

/** Returns headings, list items, cells and paragraphs, without blocks of code. */
function splitMarkdown(source: string): Paragraph[] {
  const paragraphs: Line[][] = [[]];
  let fence = "";
  source.split("\n").forEach((raw, index) => {
    const line = index + 1;
    const mark = /^\s*(```+|~~~+)/.exec(raw)?.[1] ?? "";
    if (fence !== "" || mark !== "") {
      if (fence === "") fence = mark;
      else if (mark.startsWith(fence)) fence = "";
      paragraphs.push([]);
    } else if (/^\s*\|/.test(raw)) {
      const cells = raw.split("|").map((text) => text.trim());
      paragraphs.push(...cells.filter((text) => /\p{L}/u.test(text)).map((text) => [{ line, text }]), []);
    } else {
      const item = /^\s*(?:#+ |> ?|[-*] |\d+\. )+/.exec(raw)?.[0] ?? "";
      if (raw.trim() === "" || item !== "") paragraphs.push([]);
      if (raw.trim() !== "") paragraphs.at(-1)?.push({ line, text: raw.slice(item.length).trim() });
      if (item.includes("#")) paragraphs.push([]);
    }
  });
  return paragraphs;
}

/** Returns the sentences of a shell or Python script, from the lines that contain only a comment. */
function readScript(source: string, file: string): Sentence[] {
  const paragraphs: Line[][] = [[]];
  source.split("\n").forEach((raw, index) => {
    const text = /^\s*#+ ?([^!].*)$/.exec(raw)?.[1];
    if (text === undefined) paragraphs.push([]);
    else paragraphs.at(-1)?.push({ line: index + 1, text });
  });
  return toSentences(paragraphs.flatMap(splitComment), file, "comment");
}

/** Returns the summaries and descriptions of an API document. */
function readDocument(source: string, file: string): Sentence[] {
  const sentences: Sentence[] = [];
  let from = 0;
  const visit = (value: unknown, key: string): void => {
    if (typeof value === "string" && ["summary", "description"].includes(key)) {
      const at = source.indexOf(JSON.stringify(value), from);
      if (at !== -1) from = at;
      const line = source.slice(0, from).split("\n").length;
      sentences.push(...toSentences(splitMarkdown(value), file, "openapi").map((one) => ({ ...one, line })));
    } else if (typeof value === "object" && value !== null) {
      for (const [name, inner] of Object.entries(value)) {
        if (!["example", "examples", "default", "enum", "const"].includes(name)) visit(inner, name);
      }
    }
  };
  visit(JSON.parse(source), "");
  return sentences;
}

/**
 * Matches the end of a sentence: a punctuation mark, spaces, and a capital letter, with quotes and emphasis around
 * both.
 */
const sentenceEnd = /(?<=[.!?]["'”)`*]*)\s+(?=["'“(`*[]*\p{Lu})/u;

function toSentences(paragraphs: readonly Paragraph[], file: string, kind: ProseKind): Sentence[] {
  return paragraphs.flatMap((lines) => {
    const whole = lines.map(({ text }) => text).join("\n");
    let offset = 0;
    return whole.split(sentenceEnd).flatMap((raw, index): Sentence[] => {
      const start = whole.indexOf(raw, offset);
      offset = start + raw.length;
      const before = whole.slice(0, start).split("\n").length - 1;
      const text = raw.replaceAll(/\s+/g, " ").trim();
      if (!/\p{L}/u.test(text)) return [];
      return [{ file, line: lines[before]?.line ?? lines[0]?.line ?? 1, kind, text, first: index === 0 }];
    });
  });
}
