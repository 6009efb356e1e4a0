/**
 * COPY TO STDOUT and COPY FROM STDIN as streams over a connection of `pg`, which has no such streams itself. The
 * protocol: protocol-flow.html#PROTOCOL-COPY of PostgreSQL's documentation. Memory is bounded: a slow file pauses the
 * database, and a slow database pauses the file.
 */
import { once } from "node:events";
import { Readable, type Duplex } from "node:stream";
import type pg from "pg";

/** The part of `pg`'s connection that a copy needs. */
interface Wire {
  stream: Duplex;
  query(text: string): void;
  sendCopyFromChunk(chunk: Buffer): void;
  endCopyFrom(): void;
  sendCopyFail(message: string): void;
}

/** A statement as `pg` runs it: `pg` calls one handler for each message of the database. */
abstract class CopyStatement {
  readonly #text: string;

  constructor(text: string) {
    this.#text = text;
  }

  submit(wire: unknown): void {
    (wire as Wire).query(this.#text);
  }

  handleCommandComplete(): void {}
  abstract handleError(error: Error): void;
  abstract handleReadyForQuery(): void;
}

class CopyOut extends CopyStatement {
  #wire: Wire | undefined;
  readonly rows = new Readable({ read: () => void this.#wire?.stream.resume() });

  override submit(wire: unknown): void {
    this.#wire = wire as Wire;
    super.submit(wire);
  }

  handleCopyData({ chunk }: { chunk: Buffer }): void {
    // The parser reuses this buffer for the next message.
    if (!this.rows.push(Buffer.from(chunk))) this.#wire?.stream.pause();
  }

  override handleError(error: Error): void {
    this.rows.destroy(error);
  }

  override handleReadyForQuery(): void {
    if (!this.rows.destroyed) this.rows.push(null);
  }
}

class CopyIn extends CopyStatement {
  readonly #source: AsyncIterable<Buffer>;
  readonly #result = Promise.withResolvers<void>();
  #failure: Error | undefined;

  constructor(text: string, source: AsyncIterable<Buffer>) {
    super(text);
    this.#source = source;
  }

  get done(): Promise<void> {
    return this.#result.promise;
  }

  handleCopyInResponse(wire: Wire): void {
    void this.#send(wire);
  }

  async #send(wire: Wire): Promise<void> {
    try {
      for await (const chunk of this.#source) {
        if (this.#failure) return;
        wire.sendCopyFromChunk(chunk);
        if (wire.stream.writableNeedDrain) await once(wire.stream, "drain");
      }
      if (!this.#failure) wire.endCopyFrom();
    } catch (error) {
      wire.sendCopyFail((error as Error).message);
    }
  }

  override handleError(error: Error): void {
    this.#failure = error;
    this.#result.reject(error);
  }

  override handleReadyForQuery(): void {
    if (!this.#failure) this.#result.resolve();
  }
}

/** Runs `copy … to stdout` and returns its rows. */
export function copyOut(client: pg.Client, text: string): Readable {
  return client.query(new CopyOut(text)).rows;
}

/** Runs `copy … from stdin` with the rows of `source`. */
export function copyIn(client: pg.Client, text: string, source: AsyncIterable<Buffer>): Promise<void> {
  return client.query(new CopyIn(text, source)).done;
}
