/**
 * The shell of a reader: one bash for a whole page, in its own mount namespace. There, the server's data directory is
 * `/var/lib/kontor`, and the checkout is read-only. HOME is an empty directory. From the test's environment, bash
 * gets only PATH. Each block is sourced from a file that contains exactly the text of the page.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const checkout = join(import.meta.dirname, "../..");
/** Mark that separates the output of blocks. */
const endMark = "── end of block ";
/** Command of the shell. A reader's terminal shows errors as well, and a command that fails is a fault of the page. */
const shell = "exec bash --noprofile --norc -euo pipefail 2>&1";
const enter = `set -e
mount -t tmpfs -o mode=755 tmpfs /var/lib
mkdir /var/lib/kontor
mount --bind "$1" /var/lib/kontor
mount --bind "$2" "$2"
mount -o remount,bind,ro "$2"
cd "$2"
${shell}`;

export class ReaderSession {
  readonly #directory = mkdtempSync(join(tmpdir(), "kontor-docs-"));
  readonly #bash: ChildProcess;
  #output = "";
  #blocks = 0;
  #isEnded = false;
  /** True once a block has failed: later blocks would fail for the same reason. */
  #isFailed = false;
  #changed = Promise.withResolvers<void>();

  constructor(dataDir: string) {
    const home = mkdtempSync(join(this.#directory, "home-"));
    const argv = ["--mount", "--propagation", "private", "sh", "-c", enter, "sh", dataDir, checkout];
    this.#bash = spawn("unshare", argv, {
      // The shell gets its own process group, so that background commands of a page end with it.
      detached: true,
      stdio: ["pipe", "pipe", "inherit"],
      env: { PATH: process.env["PATH"], HOME: home, USER: "root", LANG: "C.UTF-8" },
    });
    this.#bash.stdout?.setEncoding("utf8").on("data", (text: string) => {
      this.#output += text;
      this.#wake();
    });
    // A write to a bash that has ended fails with an error; `run` reports the end.
    this.#bash.stdin?.on("error", () => {});
    this.#bash.on("close", () => {
      this.#isEnded = true;
      this.#wake();
    });
  }

  /** Runs one block as it is printed and returns its output. */
  async run(code: string, timeoutMs: number): Promise<string> {
    if (this.#isFailed) throw new Error("An earlier block of the page failed.");
    const file = join(this.#directory, `block-${(this.#blocks += 1)}.sh`);
    writeFileSync(file, code);
    const mark = `${endMark}${this.#blocks}\n`;
    const from = this.#output.length;
    // Commands that read standard input get an empty input, because the page shows no input.
    this.#bash.stdin?.write(`. ${file} </dev/null; printf '%s\\n' '${mark.trimEnd()}'\n`);
    let isLate = false;
    const timer = setTimeout(() => {
      isLate = true;
      this.#wake();
    }, timeoutMs);
    try {
      while (!this.#output.includes(mark, from)) {
        if (this.#isEnded || isLate) {
          const why = isLate ? `No end after ${timeoutMs / 1000} s` : "A command failed";
          this.#isFailed = true;
          throw new Error(`${why} in:\n${code}\nIts output:\n${this.#output.slice(from)}`);
        }
        await this.#changed.promise;
      }
    } finally {
      clearTimeout(timer);
    }
    return this.#output.slice(from, this.#output.indexOf(mark, from));
  }

  #wake(): void {
    this.#changed.resolve();
    this.#changed = Promise.withResolvers<void>();
  }

  async close(): Promise<void> {
    if (!this.#isEnded) {
      const closed = once(this.#bash, "close");
      process.kill(-this.#bash.pid!, "SIGKILL");
      await closed;
    }
    rmSync(this.#directory, { recursive: true, force: true });
  }
}
