/**
 * The only caller of `nft`. Transactions of one process run one after the other. Two at once make each other restart
 * (the kernel's ruleset has a generation), and dozens at once never end (measured: none of 72 within 20 s). Texts that
 * arrive during a transaction are joined into the next transaction, so a burst of machines costs only a few.
 */
import { run } from "../exec.ts";

/** Timeout of a transaction, which takes 3 ms, or 15 to 20 with a deletion (the kernel waits for its readers). */
const TIMEOUT_MS = 20_000;

interface Waiting {
  text: string;
  resolve: () => void;
  reject: (error: unknown) => void;
}

export class Nft {
  readonly #execute: (text: string) => Promise<unknown>;
  #waiting: Waiting[] = [];
  #isRunning = false;

  constructor(execute: (text: string) => Promise<unknown> = load) {
    this.#execute = execute;
  }

  /**
   * Applies a text. Resolves when the rules are in force. A text that fails changes nothing, and does not block other
   * texts.
   */
  apply(text: string): Promise<void> {
    if (text === "") return Promise.resolve();
    return new Promise((resolve, reject) => {
      this.#waiting.push({ text, resolve, reject });
      if (!this.#isRunning) void this.#drain();
    });
  }

  async #drain(): Promise<void> {
    this.#isRunning = true;
    while (this.#waiting.length > 0) {
      const batch = this.#waiting.splice(0);
      try {
        await this.#execute(batch.map(({ text }) => text).join(""));
        for (const { resolve } of batch) resolve();
      } catch (error) {
        const [only] = batch;
        if (batch.length === 1) only?.reject(error);
        else for (const each of batch) await this.#execute(each.text).then(each.resolve, each.reject);
      }
    }
    this.#isRunning = false;
  }
}

async function load(text: string): Promise<void> {
  await run(["nft", "-f", "-"], { stdin: text, timeoutMs: TIMEOUT_MS });
}

/** Returns the output of `nft -j -n list …`. */
export async function listNft(...what: string[]): Promise<string> {
  return (await run(["nft", "-j", "-n", "list", ...what], { timeoutMs: TIMEOUT_MS })).stdout;
}
