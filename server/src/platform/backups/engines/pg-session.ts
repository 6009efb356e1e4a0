/**
 * A psql session as PostgreSQL's own account, over the machine's socket. The statements share a transaction, as an
 * exported snapshot requires. Output is read up to a marker of ours, and is bounded.
 */
import { randomBytes } from "node:crypto";
import type { Guest, GuestProcess } from "#machines/host/guest.ts";
import { BackupFailed } from "../errors.ts";
import { sessionOptions } from "./pg-contents.ts";
import { requireSuccess, start } from "./streams.ts";

export const bin = "/usr/lib/postgresql/15/bin";
type OutputChunk = GuestProcess["output"] extends AsyncIterable<infer T> ? T : never;

/** Limit of the output in bytes. The limit allows a line for each of a hundred thousand schema objects. */
const maxBytes = 32 * 1024 ** 2;

export function psql(database: string): string[] {
  return [`${bin}/psql`, "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", database];
}

export const asPostgres = {
  user: "postgres",
  // The owner sees this name in pg_stat_activity.
  env: { PGOPTIONS: sessionOptions, PGAPPNAME: "kontor-backup", PGCONNECT_TIMEOUT: "30" },
};

export class Session implements Disposable {
  readonly #process: GuestProcess;
  readonly #letGo: () => void;
  readonly #program: { argv: string[] };
  readonly #signal: AbortSignal;
  readonly #output: AsyncIterator<OutputChunk>;
  #stderr = "";

  private constructor(
    started: { process: GuestProcess; letGo: () => void },
    program: { argv: string[] },
    signal: AbortSignal,
  ) {
    this.#process = started.process;
    this.#letGo = started.letGo;
    this.#program = program;
    this.#signal = signal;
    this.#output = started.process.output[Symbol.asyncIterator]();
  }

  static async open(guest: Guest, database: string, signal: AbortSignal): Promise<Session> {
    const program = { argv: [...psql(database), "-f", "-"], ...asPostgres };
    return new Session(await start(guest, program, signal), program, signal);
  }

  [Symbol.dispose](): void {
    this.#letGo();
  }

  /**
   * Runs the statements and returns their output by line. Each statement ends in a semicolon. If `ends` aborts, the
   * session ends.
   */
  async query(statements: string, ends: AbortSignal = this.#signal): Promise<string[]> {
    const mark = `kontor-${randomBytes(12).toString("hex")}`;
    const stop = () => this.#letGo();
    ends.addEventListener("abort", stop, { once: true });
    try {
      ends.throwIfAborted();
      await this.#process.writeStdin(Buffer.from(`${statements}\n\\echo ${mark}\n`));
      const answer = await this.#readTo(`${mark}\n`);
      return answer.split("\n").filter((line) => line !== "");
    } catch (error) {
      throw ends.aborted ? ends.reason : error;
    } finally {
      ends.removeEventListener("abort", stop);
    }
  }

  async #readTo(mark: string): Promise<string> {
    const pieces: Buffer[] = [];
    let bytes = 0;
    let tail = "";
    // The output is iterated by hand. Leaving a `for await` loop would close the output, which the next call needs.
    for (let next = await this.#output.next(); !next.done; next = await this.#output.next()) {
      const { stream, data } = next.value;
      if (stream === "stderr") {
        this.#stderr = (this.#stderr + data.toString("utf8")).slice(-4_000);
        continue;
      }
      bytes += data.length;
      if (bytes > maxBytes) throw new BackupFailed("The database has too many tables and other objects.");
      pieces.push(data);
      tail = (tail + data.toString("latin1")).slice(-mark.length);
      if (tail === mark) return Buffer.concat(pieces).toString("utf8").slice(0, -mark.length);
    }
    await requireSuccess(this.#program, this.#process, this.#stderr);
    throw new BackupFailed("psql ended before it returned a result.");
  }
}
