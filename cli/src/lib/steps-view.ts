/**
 * One tidy line per step, with a tick and its seconds. On a terminal the line is redrawn while the step works and
 * shows a bar where the share done is known; without one, a step that takes longer than a moment says so once when
 * it starts to, and every fifteen seconds after that.
 */

export interface StepView {
  /** `fraction` 0–1 where known. */
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

/** `[██████░░░░]  60 %` */
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
