/**
 * Draws 60 sentences for a reader who marks each as clear at once or not:
 * `node cli/src/lint/draw-sentences.ts --seed N [--commits FROM..TO]`. Ten of each kind: comments, test titles, pages,
 * API documents, errors and other texts, commit subjects (the last 200 without `--commits`).
 *
 * The order is that of a hash of seed and sentence, so an edit elsewhere does not change the rest of the draw.
 */
import { createHash } from "node:crypto";
import { parseArgs } from "node:util";
import { Failure } from "../lib/failure.ts";
import { productRoot } from "../lib/places.ts";
import { run } from "../lib/run.ts";
import { findSentences, listProseFiles, readSource, type Sentence } from "./prose.ts";

export interface Candidate {
  source: string;
  text: string;
}

const perKind = 10;

/** Draws `count` candidates. A sentence that occurs several times is drawn once. */
export function draw(from: readonly Candidate[], seed: string, count: number): Candidate[] {
  const place = (text: string): string => createHash("sha256").update(`${seed}\0${text}`).digest("hex");
  const different = new Map(from.map((sentence) => [sentence.text, sentence]));
  return [...different.values()]
    .map((sentence) => ({ sentence, place: place(sentence.text) }))
    .toSorted((a, b) => (a.place < b.place ? -1 : 1))
    .slice(0, count)
    .map(({ sentence }) => sentence);
}

/** True for a sentence of a route or a schema. These sentences are part of the API documents. */
const isWire = ({ kind, file }: Sentence): boolean =>
  kind === "text" && /(schema|routes|api|introductions)\.ts$/.test(file);

async function readSubjects(range: string | undefined): Promise<Candidate[]> {
  const argv = ["git", "log", "--no-merges", "--format=%h %s", ...(range ? [range, "--"] : ["-200"])];
  const { code, output } = await run(argv as [string, ...string[]], { cwd: productRoot });
  if (code !== 0) throw new Failure(`git log ended with ${code}: ${output.trim()}`);
  return output
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => ({ source: line.split(" ")[0] ?? "", text: line.slice(line.indexOf(" ") + 1) }));
}

if (import.meta.main) {
  const { values } = parseArgs({ options: { seed: { type: "string" }, commits: { type: "string" } } });
  const { seed, commits } = values;
  if (seed === undefined) throw new Failure("--seed is missing: give a number, for example --seed 1.");
  const sentences = (await listProseFiles()).flatMap((file) => findSentences(readSource(file), file));
  const byKind = Object.groupBy(
    sentences.filter((sentence) => !isWire(sentence)),
    ({ kind }) => kind,
  );
  const kinds: Record<string, Candidate[]> = { commit: await readSubjects(commits) };
  for (const [kind, of] of Object.entries(byKind))
    kinds[kind] = of.map(({ file, line, text }) => ({ source: `${file}:${line}`, text }));
  let number = 0;
  for (const kind of ["comment", "title", "page", "openapi", "text", "commit"]) {
    for (const { source, text } of draw(kinds[kind] ?? [], seed, perKind)) {
      number += 1;
      process.stdout.write(`${String(number).padStart(2)}. ${kind}, ${source}\n    ${text}\n`);
    }
  }
}
