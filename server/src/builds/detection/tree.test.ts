import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { execFileSync } from "node:child_process";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterAll, expect, test } from "vitest";
import { directoryTree } from "./tree.ts";

const home = mkdtempSync(path.join(tmpdir(), "kontor-tree-"));
afterAll(() => rmSync(home, { recursive: true, force: true }));

const at = (name: string): string => path.join(home, name);
mkdirSync(at("repo/app"), { recursive: true });
writeFileSync(at("secret"), "of the host");
writeFileSync(at("repo/package.json"), "\uFEFF{}");
writeFileSync(at("repo/app/main.py"), "é".repeat(10));
mkdirSync(at("repository-beside"));
writeFileSync(at("repository-beside/secret"), "of a neighbour");
symlinkSync("../secret", at("repo/leads-out"));
symlinkSync("/etc", at("repo/leads-to-etc"));
symlinkSync("../repository-beside", at("repo/leads-beside"));
symlinkSync("circle", at("repo/circle"));
symlinkSync("app/main.py", at("repo/leads-in"));
execFileSync("/usr/bin/mkfifo", [at("repo/fifo")]);
const tree = directoryTree(at("repo"));

test("reads a file up to the limit, without its byte order mark", async () => {
  expect(await tree.read("package.json", 100)).toBe("{}");
  expect(await tree.read("app/main.py", 4)).toBe("éé");
});

test("reads only ordinary files inside the tree", async () => {
  const paths = ["none", "app", "none/deeper", "package.json/deeper", "fifo", "x".repeat(5000), "nul\0"];
  for (const file of [...paths, "leads-out", "leads-to-etc/passwd", "leads-beside/secret", "circle"])
    expect(await tree.read(file, 100), file).toBeUndefined();
});

test("refuses paths that leave the tree", async () => {
  for (const file of ["../secret", "app/../../secret", at("secret")])
    expect(await tree.read(file, 100), file).toBeUndefined();
  for (const directory of ["..", "/", "leads-to-etc", "leads-beside", "none"])
    expect(await tree.list(directory), directory).toEqual([]);
});

test("resolves a link to a target inside the tree", async () => {
  expect(await tree.read("leads-in", 2)).toBe("é");
  expect(await tree.list(".")).toEqual([
    { name: "app", kind: "directory" },
    { name: "circle", kind: "other" },
    { name: "fifo", kind: "other" },
    { name: "leads-beside", kind: "other" },
    { name: "leads-in", kind: "file" },
    { name: "leads-out", kind: "other" },
    { name: "leads-to-etc", kind: "other" },
    { name: "package.json", kind: "file" },
  ]);
});
