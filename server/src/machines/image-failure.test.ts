import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { RuntimeError } from "@kontor/runtime/driver.ts";
import { run } from "@kontor/runtime/exec.ts";
import { FakeDriver } from "@kontor/runtime/fake/driver.ts";
import { silentLog, testClock, testConfig, testDatabase } from "../../test/harness.ts";
import { describeImageFailure } from "./image-failure.ts";
import { openMachines } from "./open.ts";

const step = (why: string) =>
  `image debian-12 could not be made: step 1 (installing 12 packages) failed: ${why}. Advice.`;

test.each([
  [
    step("mmdebstrap exited with 100: E: Failed to fetch http://deb.test/Release"),
    "A source of its packages did",
  ],
  [step("tar exited with 2: /srv/x: Cannot write: No space left on device"), "The host's disk is full."],
  [step("mmdebstrap did not end within 900000 ms"), "The build did not finish in time."],
  [step("mmdebstrap is not installed"), "The host lacks a program that makes images."],
  [step("this host's apt names no Debian mirror: add"), "The host's apt has no Debian mirror."],
  [step("chroot exited with 1: /srv/kontor/images/x"), "Step 1 (installing 12 packages) failed."],
  ["/srv/kontor: EPERM", "The build failed."],
])("describes %j in words", (message, words) => {
  const described = describeImageFailure(new RuntimeError("image_failed", message));
  expect(described).toContain(words);
  expect(described).toContain("The server log has the details");
  expect(described).not.toMatch(/srv|deb\.test|exited/);
});

test("describes the failure of a program in words", async () => {
  const late = await run(["sleep", "60"], { timeoutMs: 1 }).catch((error: unknown) => error);
  expect(describeImageFailure(late)).toContain("The build did not finish in time.");
  const missing = await run(["kontor-no-such-program"]).catch((error: unknown) => error);
  expect(describeImageFailure(missing)).toContain("The host lacks a program that makes images.");
});

test("shows the cause of a template that failed in words, and stores the error itself", async () => {
  const { db } = await testDatabase();
  const directory = await mkdtemp(join(tmpdir(), "kontor-image-failure-"));
  onTestFinished(() => rm(directory, { recursive: true }));
  const driver = new FakeDriver({ directory: join(directory, "machines") });
  const raw = step("chroot exited with 1: /srv/kontor/images/x");
  driver.ensureImage = () => Promise.reject(new RuntimeError("image_failed", raw));
  const config = testConfig({ dataDir: directory });
  const machines = await openMachines({ config, db, clock: testClock(), log: silentLog, driver });
  onTestFinished(() => machines.close());
  await expect(machines.images.ensure("debian-12")).rejects.toThrow("chroot");
  const status = machines.images.status().find(({ name }) => name === "debian-12");
  expect(status).toMatchObject({
    state: "failed",
    error: expect.stringMatching(/^Step 1 \(installing 12 packages\)/),
  });
  expect(status?.error).not.toContain("/srv");
  const row = await db
    .selectFrom("host_images")
    .select("error")
    .where("name", "=", "debian-12")
    .executeTakeFirst();
  expect(row?.error).toBe(raw);
});
