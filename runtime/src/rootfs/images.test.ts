import { createHash } from "node:crypto";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { substituteFor, versionIn } from "./images.ts";
import { checkIntegrity, makeSteps } from "./steps.ts";
import { certificates } from "./trust.ts";

test("finds a version in the output of programs", () => {
  expect(versionIn("Python 3.13.5\n")).toBe("3.13.5");
  expect(versionIn("v22.23.3\n")).toBe("22.23.3");
  expect(versionIn("git version 2.39.5\n")).toBe("2.39.5");
  expect(versionIn("GNU bash, version 5.2.15(1)-release (x86_64-pc-linux-gnu)\nCopyright")).toBe("5.2.15");
  expect(versionIn("trixie/sid\n")).toBe("trixie/sid");
});

test("accepts a promised version and more precise versions, and no other version", () => {
  expect(substituteFor({ python: "3.12" }, { python: "3.12.7" })).toBeUndefined();
  expect(substituteFor({ python: "3.12" }, { python: "3.12" })).toBeUndefined();
  expect(substituteFor({ python: "3.12" }, { python: "3.120" })).toBe("3.120");
  expect(substituteFor({ python: "3.12" }, { debian: "13.1", python: "3.13.5" })).toBe("3.13.5");
  expect(substituteFor({ python: "3.12" }, {})).toBe("none");
  expect(substituteFor({}, {})).toBeUndefined();
});

test("rejects a download that differs from the registry's description, or has no description", () => {
  const content = Buffer.from("archive");
  const integrity = `sha512-${createHash("sha512").update(content).digest("base64")}`;
  expect(() => checkIntegrity(content, integrity)).not.toThrow();
  expect(() => checkIntegrity(Buffer.from("other"), integrity)).toThrow("does not match the registry");
  expect(() => checkIntegrity(content, "md5-abc")).toThrow("no integrity");
  expect(() => checkIntegrity(content, "undefined")).toThrow("no integrity");
});

test("writes files of a recipe to their path, with missing directories", async () => {
  const rootfs = await mkdtemp(path.join(os.tmpdir(), "kontor-rootfs-"));
  onTestFinished(() => rm(rootfs, { recursive: true }));
  const step = { kind: "files", from: "x", into: "/usr/lib/tool", contents: { "a/b.py": "text" } } as const;
  await makeSteps([step], { rootfs, progress: () => {}, baseRootfs: async () => "" });
  expect(await readFile(path.join(rootfs, "usr/lib/tool/a/b.py"), "utf8")).toBe("text");
});

test("splits a bundle into certificates, each once", () => {
  const one = "-----BEGIN CERTIFICATE-----\nQQ==\n-----END CERTIFICATE-----";
  const two = "-----BEGIN CERTIFICATE-----\nQg==\n-----END CERTIFICATE-----";
  expect(certificates(`# CA one\n${one}\n${two.replaceAll("\n", "\r\n")}\n${one}\n`)).toEqual([one, two]);
  expect(certificates("")).toEqual([]);
});
