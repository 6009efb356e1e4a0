/** Builds with programs that the operator configured, on the real builder. */
import { mkdtempSync } from "node:fs";
import { readdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { findEngines } from "./engines.ts";
import { makeTestBuilds } from "./testing/builds.ts";

const named = mkdtempSync(join(tmpdir(), "kontor-engines-"));
/** Returns a wrapper script that leaves a file in the workspace's caches and then runs the program of /usr. */
const wrapper = (name: string, program: string) =>
  `#!/bin/sh\n: > /caches/named-${name}\nls /engines > /caches/beside-${name}\nexec ${program} "$@"\n`;
const builds = makeTestBuilds(null, { buildah: join(named, "link"), runc: join(named, "runc") });

beforeAll(async () => {
  await writeFile(join(named, "buildah-9"), wrapper("buildah", "/usr/bin/buildah"), { mode: 0o755 });
  await writeFile(join(named, "runc"), wrapper("runc", "/usr/sbin/runc"), { mode: 0o755 });
  await writeFile(join(named, "secret"), "of the operator");
  await symlink("buildah-9", join(named, "link"));
  await builds.open();
});
afterAll(async () => {
  await builds.close();
  await rm(named, { recursive: true, force: true });
});

test("builds with the configured buildah and runc, and hides their directories from steps", async () => {
  const { log } = await builds.built("FROM debian:12-slim\nRUN echo sees $(ls -d /engines 2>&1)\n");
  expect(log).toContain("No such file or directory");
  const caches = join(builds.oci, "workspaces/one/caches");
  expect(await readdir(caches)).toEqual(expect.arrayContaining(["named-buildah", "named-runc"]));
  expect(await readFile(join(caches, "beside-runc"), "utf8")).toBe("buildah\nrunc\n");
  await builds.expectNothingLeft();
});

test("refuses a program that is missing or not executable for every user", async () => {
  await expect(findEngines({ runc: join(named, "none") })).rejects.toThrow(/^There is no runc at/);
  await expect(findEngines({ runc: join(named, "secret") })).rejects.toThrow("chmod 755");
  await expect(findEngines({ runc: named })).rejects.toThrow("must be a program");
  expect(await findEngines({ buildah: null, runc: null })).toEqual(new Map());
});
