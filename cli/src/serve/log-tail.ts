/**
 * Reads the log file of the server. The server always logs to a file, so the end of a terminal does not end the server.
 * A watch starts at the current end of the file.
 */
import { closeSync, existsSync, mkdirSync, openSync, readSync, renameSync, statSync } from "node:fs";
import path from "node:path";

/** Size in bytes above which a log is renamed at the next start; one old file is kept. */
const rotateAtBytes = 64 * 1024 * 1024;

export function openLog(file: string): { fd: number; size: number } {
  const folder = path.dirname(file);
  // The directory has the mode of the data directory, as the server sets it: PostgreSQL's account must enter it
  mkdirSync(path.dirname(folder), { recursive: true, mode: 0o711 });
  mkdirSync(folder, { recursive: true, mode: 0o750 });
  if (existsSync(file) && statSync(file).size > rotateAtBytes) renameSync(file, `${file}.1`);
  const fd = openSync(file, "a", 0o640);
  return { fd, size: statSync(file).size };
}

/** Returns the complete lines added since the last call. */
export class LogTail {
  readonly #fd: number;
  #offset: number;
  #rest = "";

  constructor(file: string, offset: number) {
    this.#fd = openSync(file, "r");
    this.#offset = offset;
  }

  lines(): string[] {
    const chunk = Buffer.alloc(256 * 1024);
    const lines: string[] = [];
    for (;;) {
      const read = readSync(this.#fd, chunk, 0, chunk.length, this.#offset);
      if (read === 0) return lines;
      this.#offset += read;
      const parts = (this.#rest + chunk.toString("utf8", 0, read)).split("\n");
      this.#rest = parts.pop() ?? "";
      lines.push(...parts);
    }
  }

  close(): void {
    closeSync(this.#fd);
  }
}

/** Labels of the levels that the terminal shows. */
const shown: Record<string, string> = { warn: "warning", error: "error", fatal: "error" };

/**
 * Formats a line of the log for the terminal: warnings, errors, and lines that are not from the logger, such as a
 * crash. Returns undefined for other lines.
 */
export function worthShowing(line: string): string | undefined {
  if (!line.startsWith("{")) return line.trim() === "" ? undefined : line;
  try {
    const entry = JSON.parse(line) as { level?: string; msg?: string; error?: { message?: string } };
    const { level = "", msg = "", error } = entry;
    if (!shown[level]) return undefined;
    const cause = error?.message && !msg.includes(error.message) ? ` (${error.message})` : "";
    return `${shown[level]}: ${msg}${cause}`;
  } catch {
    return line;
  }
}
