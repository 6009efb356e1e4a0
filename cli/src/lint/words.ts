/**
 * Lists sentences that begin with a word that hides the subject, and types, functions and files that a bare past
 * participle names: `node cli/src/lint/words.ts [--count] [files or folders]`. `--count` counts them for each folder.
 */
import path from "node:path";
import {
  findNames,
  findSentences,
  listProseFiles,
  readSource,
  type DeclaredName,
  type Sentence,
} from "./prose.ts";

export interface Finding {
  file: string;
  line: number;
  kind: Sentence["kind"] | "name";
  text: string;
}

const openings = [
  "What",
  "Who",
  "Whose",
  "Whoever",
  "Where",
  "Of",
  "Its",
  "Those",
  "One",
  "That",
  "Also",
  "As",
];

/**
 * Matches a sentence that begins with a listed word. A compound such as "one-shot" has a subject and does not match.
 */
const opening = new RegExp(`^["'“(*_[]*(?:${openings.join("|")})(?![-\\w])`, "iu");

export function hidesSubject({ kind, first, text }: Pick<Sentence, "kind" | "first" | "text">): boolean {
  if (!opening.test(text)) return false;
  // A capital letter starts a sentence. In source, a text that starts with a small letter is a fragment of a sentence.
  return (first && kind !== "text") || /^\P{L}*\p{Lu}/u.test(text);
}

const irregular =
  "asked begun bound bought brought built caught chosen come cut done drawn driven fallen felt found given gone grown " +
  "had heard held hidden kept known led left lent lost made meant met paid put said seen sent shown shut slept sold " +
  "spent stood taken taught thought told understood undone won worn written";
const participles = new Set(irregular.split(" "));

/** Words that end in -ed and are not participles. */
const notParticiples = new Set([
  "bed",
  "embed",
  "exceed",
  "feed",
  "hundred",
  "need",
  "proceed",
  "red",
  "seed",
  "shed",
]);

/** Returns whether a name is a single participle. A participle with its noun, such as `heldVolumes`, is clear. */
export function isBareParticiple(name: string): boolean {
  const word = name.toLowerCase();
  if (/.[A-Z_-]/.test(name)) return false;
  return participles.has(word) || (/.ed$/.test(word) && !notParticiples.has(word) && !word.endsWith("eed"));
}

export function findWords(source: string, file: string): Finding[] {
  const base = path.basename(file).split(".")[0] ?? "";
  const ownName: DeclaredName[] = /\.(ts|c)$/.test(file) ? [{ file, line: 1, name: base }] : [];
  const names = [...ownName, ...findNames(source, file)].filter(({ name }) => isBareParticiple(name));
  return [
    ...findSentences(source, file).filter(hidesSubject),
    ...names.map(({ line, name }): Finding => ({ file, line, kind: "name", text: name })),
  ].map(({ file: where, line, kind, text }) => ({ file: where, line, kind, text }));
}

/**
 * Returns the folder for the counts: `server/src/agent` for `server/src/agent/runs/api/invoke.ts`, and `.` for a file
 * at the top.
 */
const folderOf = (file: string): string => path.dirname(file).split("/").slice(0, 3).join("/");

/** Returns a line for each folder: findings by kind, and their sum. */
function countByFolder(findings: readonly Finding[]): string[] {
  const kinds = ["comment", "title", "page", "openapi", "text", "name"] as const;
  const row = (label: string, of: readonly Finding[]): string =>
    [of.length, ...kinds.map((kind) => of.filter((finding) => finding.kind === kind).length)]
      .map((count) => String(count).padStart(8))
      .join("") + `  ${label}`;
  const folders = Object.entries(Object.groupBy(findings, ({ file }) => folderOf(file)));
  return [
    ["all", ...kinds].map((title) => title.padStart(8)).join("") + "  folder",
    ...folders.map(([folder, of]) => row(folder, of ?? [])),
    row("all folders", findings),
  ];
}

if (import.meta.main) {
  const given = process.argv.slice(2);
  const below = given.filter((argument) => !argument.startsWith("--"));
  const findings = (await listProseFiles(below)).flatMap((file) => findWords(readSource(file), file));
  const lines = given.includes("--count")
    ? countByFolder(findings)
    : findings.map(({ file, line, kind, text }) => `${file}:${line}: ${kind}: ${text}`);
  process.stdout.write(lines.map((line) => `${line}\n`).join(""));
  if (findings.length > 0) process.exitCode = 1;
}
