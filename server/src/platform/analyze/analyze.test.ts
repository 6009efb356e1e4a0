import { readdir } from "node:fs/promises";
import { createServer, type AddressInfo, type Socket } from "node:net";
import { once } from "node:events";
import { beforeAll, expect, onTestFinished, test } from "vitest";
import type { Actor } from "#accounts/actor.ts";
import { testDatabase } from "../../../test/harness.ts";
import { checkoutsDirectory, repositoryDirectory } from "../git/git.ts";
import { commitFiles } from "../git/testing/git-app.ts";
import { makeProject, personOn, type ProjectsApp, projectsApp } from "../testing/platform-app.ts";
import { analyzeProject } from "./analyze.ts";
import { RepoAnalysis } from "./schema.ts";

const { db } = await testDatabase();
let app: ProjectsApp;
let actor: Actor;

beforeAll(async () => {
  app = await projectsApp(db);
  actor = await personOn(db, "team");
});

const refusal = (code: string, status: number) => expect.objectContaining({ code, status });

const express = {
  "package.json": JSON.stringify({ dependencies: { express: "5" }, scripts: { start: "node server.js" } }),
  "package-lock.json": "{}",
  "server.js": "require('express')().listen(process.env.PORT)",
};

async function makePushedProject(files: Record<string, string>, input: object = {}) {
  const project = await makeProject(app, actor, { ...input });
  await commitFiles(repositoryDirectory(app, project.id), project.branch, files);
  return project;
}

test("detects the framework in the newest commit, returns the recipe with reasons, and deletes the checkout", async () => {
  const project = await makePushedProject(express);
  const analysis = await analyzeProject(app, actor, project.id);
  expect(RepoAnalysis.safeParse(analysis).error).toBeUndefined();
  expect(analysis).toMatchObject({
    framework: "express",
    runtime: "node",
    package_manager: "npm",
    start_command: "node server.js",
    port: 3000,
    recipe: expect.stringMatching(/^# Express[^]*\nFROM /),
  });
  expect(analysis.evidence).not.toEqual([]);
  expect(await readdir(checkoutsDirectory(app))).toEqual([]);
});

test("prefers the project's own settings to detected values", async () => {
  const project = await makePushedProject(
    Object.fromEntries(Object.entries(express).map(([path, text]) => [`apps/web/${path}`, text])),
    { root_directory: "apps/web", port: 4321, start_command: "node server.js --prod" },
  );
  const analysis = await analyzeProject(app, actor, project.id);
  expect(analysis).toMatchObject({
    framework: "express",
    port: 4321,
    start_command: "node server.js --prod",
  });
  expect(analysis.recipe).toContain("EXPOSE 4321");
  expect(analysis.recipe).toContain("--prod");
});

test("returns the repository's own Dockerfile as the recipe", async () => {
  const project = await makePushedProject({ Dockerfile: "FROM scratch\nEXPOSE 5000\n" });
  expect(await analyzeProject(app, actor, project.id)).toMatchObject({
    runtime: "dockerfile",
    port: 5000,
    recipe: "FROM scratch\nEXPOSE 5000\n",
  });
});

test("refuses an empty repository, a missing branch, and another workspace's project", async () => {
  const empty = await makeProject(app, actor);
  await expect(analyzeProject(app, actor, empty.id)).rejects.toThrow(refusal("repository_empty", 409));
  const other = await makeProject(app, actor, { branch: "trunk" });
  await commitFiles(repositoryDirectory(app, other.id), "main", { "index.html": "" });
  await expect(analyzeProject(app, actor, other.id)).rejects.toThrow(refusal("branch_not_found", 409));
  const project = await makePushedProject({ "index.html": "" });
  const stranger = await personOn(db, "pro");
  await expect(analyzeProject(app, stranger, project.id)).rejects.toThrow(refusal("project_not_found", 404));
  expect(await readdir(checkoutsDirectory(app))).toEqual([]);
});

test("analyzes for another payer while one payer's repositories do not respond", async () => {
  const held: Socket[] = [];
  const silent = createServer((socket) => held.push(socket.on("error", () => {})));
  silent.listen(0, "127.0.0.1");
  await once(silent, "listening");
  onTestFinished(() => void silent.close());
  const opened = { ...app, config: { ...app.config, allowPrivateHosts: ["127.0.0.0/8"] } };
  const repo_url = `https://127.0.0.1:${(silent.address() as AddressInfo).port}/a/b`;
  const slow = await Promise.all([1, 2].map(() => makeProject(opened, actor, { repo_url })));
  const analyses = slow.map(({ id }) => analyzeProject(opened, actor, id).catch((error: unknown) => error));
  await expect.poll(() => held.length, { timeout: 20_000 }).toBe(1);
  const other = await personOn(db, "pro");
  const theirs = await makeProject(app, other);
  await commitFiles(repositoryDirectory(app, theirs.id), theirs.branch, express);
  expect(await analyzeProject(app, other, theirs.id)).toMatchObject({ framework: "express" });
  expect(held).toHaveLength(1);
  // The second repository's fetch starts when the connection of the first one has ended.
  const hangUp = setInterval(() => held.forEach((socket) => socket.destroy()), 50);
  onTestFinished(() => clearInterval(hangUp));
  expect(await Promise.all(analyses)).toEqual([
    refusal("repository_unavailable", 409),
    refusal("repository_unavailable", 409),
  ]);
});
