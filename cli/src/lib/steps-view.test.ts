import { expect, test } from "vitest";
import { bar, seconds, startStep } from "./steps-view.ts";

test("fills a progress bar by its fraction, and never beyond its ends", () => {
  expect(bar(0.5, 4)).toBe("[██░░]  50 %");
  expect(bar(7, 4)).toBe("[████] 100 %");
  expect(bar(-1, 4)).toBe("[░░░░]   0 %");
});

test("prints short durations with tenths of seconds, and long durations as minutes", () => {
  expect(seconds(1_234)).toBe("1.2 s");
  expect(seconds(125_000)).toBe("2 min 5 s");
});

test("without a terminal, prints a quick step on one plain line", () => {
  const written: string[] = [];
  const view = startStep("Server", { write: (text) => written.push(text) });
  view.update("starting");
  view.done("pid 7");
  expect(written).toEqual(["✓ Server  pid 7  (0.0 s)\n"]);
});
