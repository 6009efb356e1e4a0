import { expect, test } from "vitest";
import { BuildProgress } from "./build-progress.ts";

function newProgress() {
  const lines: string[] = [];
  const reports: { percent: number; message: string }[] = [];
  const progress = new BuildProgress(
    (line) => lines.push(line),
    ({ fraction, message }) => reports.push({ percent: Math.round(fraction * 100), message }),
  );
  return { lines, reports, progress };
}

test("logs the making of a base image once per step and per ten percent, and reports every change", () => {
  const { lines, reports, progress } = newProgress();
  const name = "python:3.13-slim";
  progress.base(name, { fraction: 0, step: "Debian trixie" });
  for (let n = 1; n <= 25; n += 1) progress.base(name, { fraction: n / 100, step: "installing packages" });
  expect(lines).toEqual([
    `Making ${name} on this host, 0 %: Debian trixie. It is kept for the next builds.\n`,
    `Making ${name} on this host, 1 %: installing packages.\n`,
    `Making ${name} on this host, 11 %: installing packages.\n`,
    `Making ${name} on this host, 21 %: installing packages.\n`,
  ]);
  expect(reports).toHaveLength(26);
  expect(reports.at(-1)).toEqual({ percent: 13, message: `Making ${name}: installing packages` });
});

test("reports the builder's steps over all stages, after the part of a base image", () => {
  const { lines, reports, progress } = newProgress();
  progress.read("STEP 1/4: FROM node:22-slim\nchatter\nSTEP 3/4: RUN npm ci\n");
  progress.read("no step\n");
  progress.read("[2/2] STEP 1/2: COPY . .\n");
  progress.base("node:22-slim", { fraction: 1, step: "ready" });
  progress.read("STEP 3/4: RUN npm ci\n");
  expect(reports).toEqual([
    { percent: 50, message: "RUN npm ci" },
    { percent: 50, message: "COPY . ." },
    { percent: 50, message: "Making node:22-slim: ready" },
    { percent: 75, message: "RUN npm ci" },
  ]);
  expect(lines).toHaveLength(1);
});
