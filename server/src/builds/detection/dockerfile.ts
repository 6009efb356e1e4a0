/**
 * Instructions of a Dockerfile, as text. Lines of `sh` come from repositories and are written so that no builder can
 * read them as anything but one argument: in JSON form wherever they hold a character that could mean something to
 * the builder's own parser (quotes, `\`, `#`, `<<`, line breaks), as they are where they cannot, to stay readable.
 */

/** Letters, digits and what separates words and commands; nothing that quotes, escapes, continues or opens a here-document. */
const plainLine = /^[A-Za-z0-9./@_][A-Za-z0-9 ./@_:=,+&|;-]*$/;

/** One program with arguments, which needs no shell; a `=` in the first word would be a variable. */
const plainWords = /^[A-Za-z0-9./@_-]+(?: +[A-Za-z0-9./@_:=,+-]+)*$/;

/** The same with variables among the arguments, and no more of a shell than that. */
const oneProgram = /^[A-Za-z0-9./@_-]+(?: +[A-Za-z0-9./@_:=,+$-]+)*$/;

/** In characters. More is no command, and what a builder takes as a line is bounded. */
export const maxCommandLength = 8192;

export function run(command: string, caches: readonly string[] = []): string {
  const mounts = caches.map((target) => `--mount=type=cache,target=${target} \\\n    `);
  const line = bounded(command);
  return `RUN ${mounts.join("")}${plainLine.test(line) ? line : shell(line)}`;
}

/** The program itself is what receives signals, wherever the line is one program. */
export function cmd(command: string): string {
  const line = bounded(command).trim();
  if (plainWords.test(line)) return `CMD ${argv(line.split(/ +/))}`;
  return `CMD ${shell(oneProgram.test(line) ? `exec ${line}` : line)}`;
}

/** Values are ours: nothing of a repository, nor of a caller, stands in them. */
export function env(values: Readonly<Record<string, string | number>>): string[] {
  const pairs = Object.entries(values).map(([name, value]) => `${name}=${value}`);
  return pairs.length === 0 ? [] : [`ENV ${pairs.join(" \\\n    ")}`];
}

function shell(line: string): string {
  return argv(["/bin/sh", "-c", line]);
}

function argv(words: readonly string[]): string {
  return `[${words.map((word) => JSON.stringify(word)).join(", ")}]`;
}

function bounded(command: string): string {
  if (command.length > maxCommandLength)
    throw new RangeError(`a command has at most ${maxCommandLength} characters`);
  return command;
}
