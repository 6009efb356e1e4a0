/** Output of a builder as whole lines, without the build's secrets. */

/** Size in characters of the pieces in which an unfinished line is passed on. */
const pieceChars = 16 * 1024;
/** Shortest secret that is hidden: a shorter text also occurs in ordinary words. */
const secretMinChars = 4;
const hidden = "[secret]";

export class LogLines {
  readonly #secrets: string[];
  readonly #dropped: readonly string[];
  readonly #to: (text: string) => void;
  #text = "";
  #last = "";

  /** `dropped`: texts that the server added to the builder's commands. */
  constructor(secrets: readonly string[], dropped: readonly string[], to: (text: string) => void) {
    // Secrets of several lines are also printed line by line. The longest come first, because one may contain
    // another.
    const all = secrets.flatMap((secret) => [secret, ...secret.split(/\r?\n/)]);
    this.#secrets = [...new Set(all)]
      .filter((secret) => secret.trim().length >= secretMinChars)
      .toSorted((a, b) => b.length - a.length);
    this.#dropped = dropped;
    this.#to = to;
  }

  /** Returns the last few lines. */
  get last(): string {
    return this.#last.trim();
  }

  write(text: string): void {
    // PostgreSQL stores no NUL, and a step can print one.
    this.#text += text.replaceAll("\0", "\u{fffd}");
    const end = this.#text.lastIndexOf("\n") + 1;
    // The end of a piece may split a secret: as many characters as the longest secret has wait for the next piece.
    const keep = this.#secrets[0]?.length ?? 0;
    const ready = end > 0 ? end : this.#text.length > pieceChars + keep ? this.#text.length - keep : 0;
    this.#give(this.#text.slice(0, ready));
    this.#text = this.#text.slice(ready);
  }

  /** Adds a line of the server itself. */
  say(line: string): void {
    this.flush();
    this.#give(`${line}\n`);
  }

  flush(): void {
    const text = this.#text;
    this.#text = "";
    this.#give(text === "" || text.endsWith("\n") ? text : `${text}\n`);
  }

  #give(text: string): void {
    if (text === "") return;
    const ours = this.#dropped.reduce((rest, words) => rest.replaceAll(words, ""), text);
    const shown = this.#secrets.reduce((rest, secret) => rest.replaceAll(secret, hidden), ours);
    this.#last = (this.#last + shown).slice(-4000);
    this.#to(shown);
  }
}
