/**
 * Prints a line for each step, with a tick and its duration. On a terminal the line is redrawn during the step, with a
 * bar if the progress is known. Without a terminal, a slow step prints a line when it becomes slow, and another line
 * every fifteen seconds.
 */

export interface StepView {
  /** Shows the current detail of a step. `fraction` is from 0 to 1, if known. */
  update(detail: string, fraction?: number): void;
  done(detail?: string): void;
  fail(detail: string): void;
}

export interface Screen {
  isTTY?: boolean;
  columns?: number;
  write(text: string): unknown;
}

const frames = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏";
const quietMs = 1_500;
const repeatMs = 15_000;

/** Returns a bar such as `[██████░░░░]  60 %`. */
export function bar(fraction: number, width = 20): string {
  const full = Math.round(Math.min(1, Math.max(0, fraction)) * width);
  const percent = String(Math.floor(Math.min(1, Math.max(0, fraction)) * 100)).padStart(3);
  return `[${"█".repeat(full)}${"░".repeat(width - full)}] ${percent} %`;
}

export function seconds(ms: number): string {
  return ms < 60_000
    ? `${(ms / 1000).toFixed(1)} s`
    : `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

export function startStep(title: string, screen: Screen = process.stderr): StepView {
  const startedAt = Date.now();
  let detail = "";
  let fraction: number | undefined;
  let lastSaid = "";
  let tick = 0;

  const text = (mark: string): string => {
    const progress = fraction === undefined ? "" : `  ${bar(fraction)}`;
    return `${mark} ${title}${progress}${detail && `  ${detail}`}`;
  };
  const redraw = (): void => {
    const line = `${text(frames[tick++ % frames.length] ?? "·")}  ${seconds(Date.now() - startedAt)}`;
    screen.write(`\r\u001b[K${line.slice(0, (screen.columns ?? 100) - 1)}`);
  };
  const say = (): void => {
    const line = text("·");
    if (line !== lastSaid) screen.write(`${line} …\n`);
    lastSaid = line;
  };
  let repeat: NodeJS.Timeout | undefined;
  const first = setTimeout(
    () => {
      if (!screen.isTTY) say();
      repeat = setInterval(screen.isTTY ? redraw : say, screen.isTTY ? 100 : repeatMs);
      repeat.unref();
    },
    screen.isTTY ? 100 : quietMs,
  );
  first.unref();

  const end = (mark: string, last: string | undefined): void => {
    clearTimeout(first);
    clearInterval(repeat);
    const clear = screen.isTTY ? "\r\u001b[K" : "";
    screen.write(
      `${clear}${mark} ${title}${last ? `  ${last}` : ""}  (${seconds(Date.now() - startedAt)})\n`,
    );
  };
  return {
    update(newDetail, newFraction) {
      detail = newDetail;
      fraction = newFraction;
    },
    done: (last) => end("✓", last),
    fail: (last) => end("✗", last),
  };
}
