/**
 * Writes instructions of a Dockerfile. Lines of `sh` come from repositories, so each must reach the builder as one
 * argument. A line with characters that the builder's parser could interpret (quotes, `\`, `#`, `<<`, line breaks) is
 * written in JSON form. Any other line is written unchanged, to stay readable.
 */

/**
 * Matches lines of letters, digits and separators of words and commands. No matched character quotes, escapes,
 * continues a line or opens a here-document.
 */
const plainLine = /^[A-Za-z0-9./@_][A-Za-z0-9 ./@_:=,+&|;-]*$/;

/**
 * Matches a program with arguments that needs no shell. The first word contains no `=`, which would assign a variable.
 */
const plainWords = /^[A-Za-z0-9./@_-]+(?: +[A-Za-z0-9./@_:=,+-]+)*$/;

/** Matches a program with variables in its arguments, and no other shell syntax. */
const oneProgram = /^[A-Za-z0-9./@_-]+(?: +[A-Za-z0-9./@_:=,+$-]+)*$/;

/** Limit of a command in characters. Builders bound the length of a line, and no sensible command is longer. */
export const maxCommandLength = 8192;

export function run(command: string, caches: readonly string[] = []): string {
  const mounts = caches.map((target) => `--mount=type=cache,target=${target} \\\n    `);
  const line = requireLength(command);
  return `RUN ${mounts.join("")}${plainLine.test(line) ? line : shell(line)}`;
}

/**
 * Returns the CMD instruction. A line that runs a single program gets no shell, so that the program receives the
 * signals.
 */
export function cmd(command: string): string {
  const line = requireLength(command).trim();
  if (plainWords.test(line)) return `CMD ${argv(line.split(/ +/))}`;
  return `CMD ${shell(oneProgram.test(line) ? `exec ${line}` : line)}`;
}

/** Returns the ENV instruction. The values are constants of ours; none comes from a repository or a caller. */
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

function requireLength(command: string): string {
  if (command.length > maxCommandLength)
    throw new RangeError(`a command must have at most ${maxCommandLength} characters`);
  return command;
}
