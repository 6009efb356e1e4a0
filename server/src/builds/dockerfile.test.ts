/** Checks of an image in its machine, while the image's programs attack the checks. */
import { expect, test } from "vitest";
import type { Guest } from "#machines/host/guest.ts";
import { inspectImage } from "./dockerfile.ts";
import { BuildFailed } from "./failures.ts";
import type { BuildLog } from "./log.ts";

/** A guest whose PID 1 the image's shell froze, so that it responds to no call. */
const frozen = { spawn: () => new Promise(() => {}) } as unknown as Guest;
const log = {} as BuildLog;
const defaults = { user: null, cwd: null };

test("ends the checks of an image whose guest does not respond", async () => {
  const { signal } = new AbortController();
  await expect(inspectImage(frozen, defaults, log, signal, 10)).rejects.toBeInstanceOf(BuildFailed);
});

test("ends the checks of an image when the server stops", async () => {
  const stop = new AbortController();
  const inspecting = inspectImage(frozen, defaults, log, stop.signal);
  stop.abort(new Error("stopped"));
  await expect(inspecting).rejects.toThrow("stopped");
});
