/**
 * Statements that come again and again are prepared: PostgreSQL then plans each once for a connection, which is most of
 * what a look at one row costs (measured: 0.15 ms of 0.65). A name is given to a text after a few uses, and to a hundred
 * texts at most: every connection keeps the plan of each, and a list's texts are as many as its filters.
 */
import pg from "pg";

const uses = 5;
const mostNames = 100;
const mostCounted = 1000;

export class StatementNames {
  readonly #names = new Map<string, string>();
  readonly #counts = new Map<string, number>();

  /** Undefined for a text that is not worth a name, or not yet. */
  nameOf(text: string): string | undefined {
    const name = this.#names.get(text);
    if (name !== undefined || this.#names.size >= mostNames) return name;
    const count = (this.#counts.get(text) ?? 0) + 1;
    if (count < uses) {
      if (this.#counts.size >= mostCounted) this.#counts.clear();
      this.#counts.set(text, count);
      return undefined;
    }
    this.#counts.delete(text);
    this.#names.set(text, `kontor_${this.#names.size}`);
    return this.#names.get(text);
  }
}

/** A client that names what it is given as a text with values; whoever brings an object of its own decides for itself. */
export function preparingClient(): typeof pg.Client {
  const names = new StatementNames();
  return class PreparingClient extends pg.Client {
    // pg's method has a dozen forms, and all but one pass through.
    override query(...given: unknown[]): never {
      const [text, values, ...rest] = given;
      const isNamed = typeof text === "string" && Array.isArray(values) && values.length > 0;
      const name = isNamed ? names.nameOf(text) : undefined;
      const query = name === undefined ? given : [{ name, text, values }, ...rest];
      return super.query.apply(this, query as never) as never;
    }
  };
}
