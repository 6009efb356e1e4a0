/** What a builder prints, as whole lines and without the secrets it was given, whoever repeats them. */

/** A line without an end is handed on in pieces of this size. */
const pieceChars = 16 * 1024;
/** What is shorter stands in ordinary words as well. */
const secretMinChars = 4;
const hidden = "[secret]";

export class LogLines {
  readonly #secrets: string[];
  readonly #dropped: readonly string[];
  readonly #to: (text: string) => void;
  #text = "";
  #last = "";

  /** `dropped`: what is in the builder's own words and not in anybody's Dockerfile. */
  constructor(secrets: readonly string[], dropped: readonly string[], to: (text: string) => void) {
    // Lines of those that have several are printed one by one; the longest first, as one may hold another.
    const all = secrets.flatMap((secret) => [secret, ...secret.split(/\r?\n/)]);
    this.#secrets = [...new Set(all)]
      .filter((secret) => secret.trim().length >= secretMinChars)
      .toSorted((a, b) => b.length - a.length);
    this.#dropped = dropped;
    this.#to = to;
  }

  /** The last few lines. */
  get last(): string {
    return this.#last.trim();
  }

  write(text: string): void {
    this.#text += text;
    const end = this.#text.lastIndexOf("\n") + 1;
    // A secret may be cut by the end of a piece: as much as the longest waits for the next one.
    const keep = this.#secrets[0]?.length ?? 0;
    const ready = end > 0 ? end : this.#text.length > pieceChars + keep ? this.#text.length - keep : 0;
    this.#give(this.#text.slice(0, ready));
    this.#text = this.#text.slice(ready);
  }

  /** A line of our own. */
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
