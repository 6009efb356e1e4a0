import { mkdirSync, mkdtempSync, realpathSync, renameSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { run } from "../lib/run.ts";
import { pointTo, readCurrent } from "../serve/current.ts";
import { findMove, makeMove } from "./leave-release.ts";

/** Makes a checkout at a commit, a data directory that is served from a release, and the release's directory. */
async function installation({ isCurrent = false } = {}) {
  const place = realpathSync(mkdtempSync(path.join(tmpdir(), "kontor-leave-")));
  onTestFinished(() => rmSync(place, { recursive: true }));
  const checkout = path.join(place, "checkout");
  const data = path.join(place, "data");
  mkdirSync(checkout);
  mkdirSync(data);
  const git = async (...args: string[]) => {
    const identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.test"];
    const { code, output } = await run(["git", ...identity, "-C", checkout, ...args]);
    expect(code, output).toBe(0);
    return output.trim();
  };
  await git("init", "--quiet");
  await git("commit", "--quiet", "--allow-empty", "--message=change");
  const commit = isCurrent ? await git("rev-parse", "HEAD") : "0".repeat(40);
  const release = path.join(checkout, ".cache/releases", commit);
  mkdirSync(release, { recursive: true });
  pointTo(data, release);
  return { place, checkout, data, release };
}

/** The checkout has no code of Kontor, so reading its migrations fails with its path. */
const noDatabase = () => Promise.reject(new Error("no database is needed"));

test("keeps the release if the checkout is at the release's commit", async () => {
  const { checkout, data } = await installation({ isCurrent: true });
  expect(await findMove(data, checkout, noDatabase)).toBeUndefined();
});

test("keeps running code that is not a release of this checkout", async () => {
  const { checkout, data } = await installation();
  const { release } = await installation();
  pointTo(data, release);
  expect(await findMove(data, checkout, noDatabase)).toBeUndefined();
});

test("recognizes a release of this checkout when .cache is a symlink", async () => {
  const { place, checkout, data } = await installation();
  renameSync(path.join(checkout, ".cache"), path.join(place, "cache"));
  symlinkSync(path.join(place, "cache"), path.join(checkout, ".cache"));
  pointTo(data, path.join(checkout, ".cache/releases", "0".repeat(40)));
  await expect(findMove(data, checkout, noDatabase)).rejects.toThrow("no directory of Kontor's code");
});

test("changes nothing if the checkout's commit cannot be read", async () => {
  const { checkout, data, release } = await installation();
  rmSync(path.join(checkout, ".git"), { recursive: true });
  await expect(findMove(data, checkout, noDatabase)).rejects.toThrow("cannot be read");
  expect(readCurrent(data)).toBe(release);
});

test("points the symlink back to the release if the restart cannot be requested", async () => {
  const { checkout, data, release } = await installation();
  const move = { from: release, to: checkout, missing: [] };
  const seen: (string | undefined)[] = [];
  const refuse = () => {
    seen.push(readCurrent(data));
    throw new Error("no such process");
  };
  expect(() => makeMove(data, move, refuse)).toThrow("no such process");
  expect([seen, readCurrent(data)]).toEqual([[checkout], release]);
  makeMove(data, move, () => {});
  expect(readCurrent(data)).toBe(checkout);
});
