import { readdir } from "node:fs/promises";
import { beforeAll, expect, test } from "vitest";
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

async function pushed(files: Record<string, string>, input: object = {}) {
  const project = await makeProject(app, actor, { ...input });
  await commitFiles(repositoryDirectory(app, project.id), project.branch, files);
  return project;
}

test("the newest commit is recognised, with its recipe and why, and nothing is left of it", async () => {
  const project = await pushed(express);
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

test("what the project's owner has laid down stands in place of what is found", async () => {
  const project = await pushed(
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

test("its own Dockerfile is the recipe", async () => {
  const project = await pushed({ Dockerfile: "FROM scratch\nEXPOSE 5000\n" });
  expect(await analyzeProject(app, actor, project.id)).toMatchObject({
    runtime: "dockerfile",
    port: 5000,
    recipe: "FROM scratch\nEXPOSE 5000\n",
  });
});

test("an empty repository, a branch that is not there, and somebody else's project are refused", async () => {
  const empty = await makeProject(app, actor);
  await expect(analyzeProject(app, actor, empty.id)).rejects.toThrow(refusal("repository_empty", 409));
  const other = await makeProject(app, actor, { branch: "trunk" });
  await commitFiles(repositoryDirectory(app, other.id), "main", { "index.html": "" });
  await expect(analyzeProject(app, actor, other.id)).rejects.toThrow(refusal("branch_not_found", 409));
  const project = await pushed({ "index.html": "" });
  const stranger = await personOn(db, "pro");
  await expect(analyzeProject(app, stranger, project.id)).rejects.toThrow(refusal("project_not_found", 404));
  expect(await readdir(checkoutsDirectory(app))).toEqual([]);
});
