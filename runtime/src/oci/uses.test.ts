import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { gzipSync } from "node:zlib";
import { afterAll, expect, test } from "vitest";
import { readDockerfile } from "./dockerfile/dockerfile.ts";
import { usesIn } from "./uses.ts";

const made: string[] = [];
afterAll(() => Promise.all(made.map((path) => rm(path, { recursive: true, force: true }))));

/** Returns the variables that count for each command of a Dockerfile, in order. */
async function findUses(files: Record<string, string | Buffer>, names: string[], dockerfile: string) {
  const context = await mkdtemp(join(tmpdir(), "kontor-uses-"));
  made.push(context);
  for (const [path, text] of Object.entries(files)) {
    await mkdir(dirname(join(context, path)), { recursive: true });
    await writeFile(join(context, path), text);
  }
  const used = await usesIn(context, names);
  const found: string[][] = [];
  readDockerfile(dockerfile, {
    isPlainPath: () => true,
    environment: { file: "/f", secrets: { "/f": "s" }, stampOf: (step) => (found.push([...used(step)]), "") },
  });
  return found;
}

const app = {
  "package.json": "{}",
  "src/page.js": "fetch(import.meta.env.VITE_API); connect(process.env.DATABASE_URL)",
  ".git/config": "HIDDEN",
};
const names = [
  "VITE_API",
  "VITE_OTHER",
  "DATABASE_URL",
  "DATABASE",
  "HIDDEN",
  "npm_config_registry",
  "TOKEN",
];

test("counts variables in a command, its files and its tools, but not variables that only the app reads", async () => {
  const dockerfile = `FROM node:22-slim AS build
RUN apt-get update
COPY package.json .npmrc ./
RUN npm ci
COPY . ./
RUN npm run build
FROM node:22-slim
COPY --from=build /app /app
RUN curl -H "$TOKEN" example.test
FROM node:22-slim
RUN --mount=type=bind,target=/x make
`;
  expect(await findUses({ ...app, ".npmrc": "" }, names, dockerfile)).toEqual([
    ["npm_config_registry"],
    ["npm_config_registry"],
    ["VITE_API", "VITE_OTHER", "DATABASE_URL", "npm_config_registry"],
    ["VITE_API", "VITE_OTHER", "DATABASE_URL", "npm_config_registry", "TOKEN"],
    ["VITE_API", "VITE_OTHER", "DATABASE_URL", "npm_config_registry"],
  ]);
});

test.each([
  ["copies it", "const all = { ...process.env };"],
  ["looks names up", "const value = process.env[name];"],
  ["is in Python", "env = dict(os.environ)"],
])("counts all variables for a file that uses the environment as a whole: %s", async (_, text) => {
  expect(await findUses({ "a.js": text }, ["A", "B"], "FROM scratch\nCOPY . .\nRUN x\n")).toEqual([
    ["A", "B"],
  ]);
});

test.each(["RUN env > /all", "RUN printenv", "RUN true; env | sort"])(
  "counts all variables for a command that uses the environment as a whole: %s",
  async (line) => {
    expect(await findUses({}, ["A"], `FROM debian:12\n${line}\n`)).toEqual([["A"]]);
  },
);

test.each(["const { A } = process.env;", "process.env.A", 'process.env["A"]', "os.environ['A']", "${A:-x}"])(
  "counts only the named variable: %s",
  async (text) => {
    expect(await findUses({ "a.js": text }, ["A", "B"], "FROM debian:12\nCOPY a.js .\nRUN x\n")).toEqual([
      ["A"],
    ]);
  },
);

test("counts every variable with a named prefix, and none for a binary file", async () => {
  const files = { "a.js": 'name.startsWith("MY_")', "b.bin": Buffer.from("\0 OTHER") };
  expect(await findUses(files, ["MY_ONE", "OTHER"], "FROM debian:12\nCOPY . .\nRUN x\n")).toEqual([
    ["MY_ONE"],
  ]);
});

test.each([
  ["gzip", gzipSync("x")],
  ["ZIP", Buffer.from("PK\x03\x04rest")],
  ["tar", Buffer.concat([Buffer.alloc(257), Buffer.from("ustar\0")])],
])("counts all variables for a file that is an archive: %s", async (_, bytes) => {
  const dockerfile = "FROM scratch\nCOPY . .\nRUN x\n";
  expect(await findUses({ "vendor/a": bytes }, ["A", "B"], dockerfile)).toEqual([["A", "B"]]);
});
