import { expect, test } from "vitest";
import type { Progress } from "@kontor/runtime/driver.ts";
import { findBase } from "@kontor/runtime/oci/bases/bases.ts";
import { silentLog } from "../../test/harness.ts";
import { PreparedImages } from "./prepare.ts";

const { signal } = new AbortController();

/** A fake host that makes images by name. Making a `broken` image fails. */
function host(broken: readonly string[] = []) {
  const made: string[] = [];
  const make = async (name: string, progress?: Progress) => {
    progress?.({ fraction: 0.5, step: "installing packages" });
    if (broken.includes(name)) throw new Error(`step 1 (unpacking) failed: E: /srv/kontor/${name}`);
    made.push(name);
  };
  const machines = { images: { ensure: make }, host: { prepareBase: make } } as never;
  return { made, app: { machines, log: silentLog } };
}

test("prepares no image without a group", async () => {
  const { made, app } = host();
  const images = new PreparedImages(app, []);
  await images.run(signal);
  expect([made, images.status()]).toEqual([[], []]);
});

test("makes each image of the groups once, and lists all groups of a shared image", async () => {
  const { made, app } = host();
  const images = new PreparedImages(app, ["addons", "functions", "apps"]);
  expect(images.status().every(({ state }) => state === "waiting")).toBe(true);
  await images.run(signal);
  expect(made).toEqual([...new Set(made)]);
  expect(made.slice(0, 2)).toEqual(["postgres-15", "redis-7"]);
  expect(images.status()).toHaveLength(made.length);
  expect(images.status().every(({ state, fraction }) => state === "ready" && fraction === 1)).toBe(true);
  expect(images.status().find(({ name }) => name === "node:22-slim")?.groups).toEqual(["functions", "apps"]);
});

test("continues after an image that failed, and reports the cause without the output of programs", async () => {
  const { made, app } = host(["postgres-15"]);
  const images = new PreparedImages(app, ["addons"]);
  await images.run(signal);
  expect(made).toEqual(["redis-7"]);
  expect(images.status()[0]).toMatchObject({
    state: "failed",
    error: expect.stringMatching(/^Step 1 \(unpacking\) failed\. [^/]+$/),
  });
});

test("lists only bases that this host can make", () => {
  const { app } = host();
  const bases = new PreparedImages(app, ["functions", "apps"]).status();
  expect(bases.map(({ name }) => [name, findBase(name)?.isSubstitute ?? false])).toEqual(
    bases.map(({ name }) => [name, false]),
  );
  expect(bases.every(({ name }) => findBase(name) !== undefined)).toBe(true);
});
