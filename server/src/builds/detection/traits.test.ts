/**
 * Trees like those of real repositories whose detection was once wrong. Each is detected correctly, or refused with a
 * warning that names the setting to change.
 */
import { describe, expect, test } from "vitest";
import { analyze, type Analysis, type AnalyzeOptions } from "./detection.ts";
import { recipeOf } from "./recipe.ts";
import { memoryTree } from "./testing/memory-tree.ts";

type Files = Record<string, string>;

const node = (manifest: object): Files => ({
  "package.json": JSON.stringify(manifest),
  "package-lock.json": "{}",
});
const vite = node({ devDependencies: { vite: "6.0.0" }, scripts: { build: "vite build", dev: "vite" } });

async function analyzeFiles(
  files: Files,
  options: AnalyzeOptions = {},
): Promise<Analysis & { recipe: string | null }> {
  const analysis = await analyze(memoryTree(files), options);
  if (analysis === undefined) throw new Error("the repository is empty");
  return { ...analysis, recipe: recipeOf(analysis, options.overrides) };
}

describe("repositories in another language", () => {
  const languages: [name: string, files: Files][] = [
    ["PHP", { "composer.json": "{}", artisan: "" }],
    ["PHP", { "index.php": "<?php" }],
    ["Ruby", { Gemfile: "" }],
    ["Ruby", { "config.ru": "" }],
    ["Java (Maven)", { "pom.xml": "" }],
    ["Java (Gradle)", { "build.gradle": "" }],
    ["Kotlin (Gradle)", { "build.gradle.kts": "" }],
    ["Scala", { "build.sbt": "" }],
    ["Rust", { "Cargo.toml": "", "src/main.rs": "" }],
    ["Elixir", { "mix.exs": "" }],
    ["Gleam", { "gleam.toml": "" }],
    ["Deno", { "deno.json": "{}" }],
    ["Deno", { "deno.jsonc": "{}" }],
    [".NET", { "Shop.csproj": "" }],
    [".NET", { "Shop.sln": "" }],
    ["Swift", { "Package.swift": "" }],
    ["Zig", { "build.zig": "" }],
    ["Crystal", { "shard.yml": "" }],
    ["Dart", { "pubspec.yaml": "" }],
    ["Hugo", { "hugo.toml": "" }],
    ["Hugo", { "config.toml": "baseURL = 'https://example.com/'", "content/_index.md": "" }],
  ];
  const beside: [what: string, files: Files, framework: string | undefined][] = [
    ["alone", {}, undefined],
    ["beside pages in docs", { "docs/index.html": "" }, "static"],
    ["beside pages in public", { "public/index.html": "" }, "static"],
    ["beside a Vite front end", vite, "vite"],
    ["beside a Node.js tool", node({ scripts: { start: "node scripts/serve.js" } }), "node"],
  ];
  const cases = languages.flatMap(([name, own]) =>
    beside.map(([what, more, framework]) => ({
      title: `refuses ${name} (${Object.keys(own)[0]}) ${what}`,
      files: { ...own, ...more },
      name,
      framework,
    })),
  );

  test.each(cases)("$title", async ({ files, name, framework }) => {
    const found = await analyzeFiles(files);
    expect(found).toMatchObject({ framework: null, recipe: null });
    const warnings = found.warnings.join("\n");
    expect(warnings).toContain(`: ${name} needs a Dockerfile in the repository`);
    expect(warnings).toContain("add a Dockerfile");
    if (framework !== undefined) expect(warnings).toContain(`or set framework to ${framework}`);
  });

  test.each(cases.filter(({ framework }) => framework !== undefined && framework !== "node"))(
    "$title, and deploys the detected part when the owner sets its framework",
    async ({ files, name, framework }) => {
      const found = await analyzeFiles(files, { framework: framework! });
      expect(found.framework).toBe(framework);
      expect(found.recipe).toMatch(/^FROM /m);
      expect(found.warnings.join("\n")).toContain(`${name} is not built here: only`);
    },
  );

  test("warns about sources of another language beside a framework that builds the whole repository", async () => {
    const found = await analyzeFiles({ ...node({ dependencies: { next: "15.1.0" } }), "Cargo.toml": "" });
    expect(found.framework).toBe("nextjs");
    expect(found.warnings).toContain("Cargo.toml: Rust is not built here: only Next.js is deployed");
  });

  test("refuses a Procfile that starts a program of another language", async () => {
    const rails = { Gemfile: "", Procfile: "web: bundle exec puma -C config/puma.rb" };
    const found = await analyzeFiles({ ...rails, ...node({ dependencies: { express: "5.0.0" } }) });
    expect(found).toMatchObject({ framework: null, recipe: null });
  });

  test("refuses a directory of pages for Jekyll", async () => {
    const found = await analyzeFiles({ "_config.yml": "theme: minima", "index.html": "---\n---\n" });
    expect(found.framework).toBeNull();
    expect(found.warnings.join("\n")).toContain("_config.yml: Jekyll needs a Dockerfile");
  });
});

describe("start commands of development servers", () => {
  const starts = [
    "webpack serve --open --config webpack.config.dev.js",
    "webpack-dev-server --mode development",
    "cross-env NODE_ENV=development webpack serve",
    "ember serve",
    "brunch watch --server",
    "polymer serve",
    "sanity start",
    "expo start --web",
    "nx serve web",
    "nx run web:serve",
    "docusaurus-start",
    "NODE_ENV=development node server.js",
    "nodemon server.js",
    "live-server public",
    "browser-sync start --server",
    'concurrently "npm:server" "npm:client"',
    "start-storybook -p 6006",
    "rsbuild dev",
    "npm run dev",
    "yarn dev",
    "tsx --watch src/index.ts",
  ];

  test.each(starts)("refuses to start %s, and names output_directory", async (start) => {
    const found = await analyzeFiles(node({ scripts: { start, build: "builder", dev: "builder --serve" } }));
    expect(found).toMatchObject({ framework: null, recipe: null });
    expect(found.warnings.join("\n")).toContain("runs a development server");
    expect(found.warnings.join("\n")).toContain("set output_directory");
  });

  test.each(starts)("serves the owner's output directory in a repository with %s", async (start) => {
    const found = await analyzeFiles(node({ scripts: { start, build: "builder" } }), {
      overrides: { outputDirectory: "www" },
    });
    expect(found).toMatchObject({
      framework: "static",
      runtime: "static",
      buildCommand: "npm run build",
      startCommand: null,
      outputDirectory: "www",
    });
    expect(found.recipe).toContain("COPY --from=build /app/www /srv/");
  });
});

describe("settings of the project's owner", () => {
  test("builds a site from framework static, a build command and an output directory", async () => {
    const found = await analyzeFiles(node({ devDependencies: { webpack: "5.0.0" } }), {
      framework: "static",
      overrides: { buildCommand: "webpack --mode production", outputDirectory: "dist" },
    });
    expect(found.framework).toBe("static");
    expect(found.recipe).toContain("webpack --mode production");
    expect(found.recipe).toContain("COPY --from=build /app/dist /srv/");
  });

  test("installs development dependencies when the owner sets a build command", async () => {
    const express = node({ dependencies: { express: "5.0.0" }, scripts: { start: "node a.js" } });
    const found = await analyzeFiles(express, { overrides: { buildCommand: "tsc" } });
    expect(found.installCommand).toBe("npm ci");
  });

  test("serves the output directory of a site generator in Python", async () => {
    const found = await analyzeFiles(
      { "requirements.txt": "mkdocs==1.6.1", "mkdocs.yml": "site_name: a" },
      { overrides: { buildCommand: "mkdocs build", outputDirectory: "site" } },
    );
    expect(found).toMatchObject({ runtime: "static", outputDirectory: "site", startCommand: null });
    expect(found.recipe).toContain("mkdocs build");
    expect(found.recipe).toContain("COPY --from=build /app/site /srv/");
  });

  test("names build_command and output_directory for MkDocs without settings", async () => {
    const found = await analyzeFiles({ "requirements.txt": "mkdocs==1.6.1", "mkdocs.yml": "site_name: a" });
    expect(found.recipe).toBeNull();
    expect(found.warnings).toContain(
      "mkdocs.yml: set build_command to mkdocs build and output_directory to site",
    );
  });

  test("serves a server framework as a site when the owner sets an output directory", async () => {
    const files = node({
      dependencies: { express: "5.0.0" },
      scripts: { build: "vite build", start: "node server.js" },
    });
    const found = await analyzeFiles(files, { overrides: { outputDirectory: "dist" } });
    expect(found).toMatchObject({ runtime: "static", outputDirectory: "dist" });
  });

  test.each([
    [{ "index.html": "" }, { buildCommand: "make" }, "build_command has no effect beside Static site"],
    [{ "index.html": "" }, { installCommand: "make" }, "install_command has no effect beside Static site"],
    [vite, { startCommand: "node a.js", outputDirectory: "dist" }, "output_directory has no effect beside"],
    [
      { Dockerfile: "FROM scratch" },
      { buildCommand: "make" },
      "build_command has no effect beside Dockerfile",
    ],
    [{ Dockerfile: "FROM scratch" }, { outputDirectory: "a" }, "output_directory has no effect beside"],
  ])("warns about a setting without effect: %j with %j", async (files, overrides, warning) => {
    const { warnings } = await analyzeFiles(files as Files, { overrides });
    expect(warnings.join("\n")).toContain(warning);
  });
});

describe("servers beside a site's sources", () => {
  test.each([
    ["npm run start-server", { "start-server": "node server/server.js" }],
    ["yarn serve", { serve: "node server/server.js" }],
    ["pnpm run a", { a: "pnpm b", b: "NODE_ENV=production node server/server.js" }],
    ["npm run build && node server/server.js", {}],
    ["npm run build && npm run serve", { serve: "node server/server.js" }],
  ])("starts the server when the start script runs %s", async (start, more) => {
    const found = await analyzeFiles(
      node({
        dependencies: { express: "5.0.0" },
        devDependencies: { vite: "6.0.0" },
        scripts: { build: "vite build", start, ...more },
      }),
    );
    expect(found).toMatchObject({ framework: "express", runtime: "node" });
    expect(found.startCommand).not.toBeNull();
  });

  test("warns about a server library when no script starts a server", async () => {
    const found = await analyzeFiles(
      node({
        dependencies: { express: "5.0.0" },
        devDependencies: { vite: "6.0.0" },
        scripts: { start: "vite" },
      }),
    );
    expect(found.framework).toBe("vite");
    expect(found.warnings.join("\n")).toContain("Express is a dependency");
  });
});

describe("projects for Bun", () => {
  const hono = { dependencies: { hono: "4.6.0" } };
  test.each<[string, Files]>([
    ["a lockfile", { "package.json": JSON.stringify(hono), "bun.lock": "{}" }],
    ["types", { "package.json": JSON.stringify({ ...hono, devDependencies: { "@types/bun": "1.2.0" } }) }],
    [
      "a script",
      { "package.json": JSON.stringify({ ...hono, scripts: { dev: "bun run --hot src/index.ts" } }) },
    ],
  ])("runs a project with Bun when %s reveals it", async (_, files) => {
    const found = await analyzeFiles({ ...files, "src/index.ts": "export default app" });
    expect(found).toMatchObject({ packageManager: "bun", startCommand: "bun run src/index.ts" });
    expect(found.recipe).toContain("npm install --global bun@1");
  });
});

describe("versions of runtimes", () => {
  const flask = { "requirements.txt": "flask==3.0.0", "app.py": "app = Flask(__name__)" };
  const next = node({ dependencies: { next: "15.1.0" } });
  test.each<[string, Files, string]>([
    [".python-version", { ...flask, ".python-version": "# used by the host\n\n3.11 # not 3.12\n" }, "3.11"],
    [".tool-versions", { ...flask, ".tool-versions": "nodejs 20.1.0\npython 3.13.1 3.12.0\n" }, "3.13"],
    ["mise.toml", { ...flask, "mise.toml": '[tools]\npython = ["3.11", "3.12"]' }, "3.11"],
    [".nvmrc", { ...next, ".nvmrc": "# the team's\n20\n" }, "20"],
    [".nvmrc with lts", { ...next, ".nvmrc": "lts/*\n" }, "24"],
    [".tool-versions for Node.js", { ...next, ".tool-versions": "nodejs 24.1.0 # new" }, "24"],
    ["mise.toml with a table", { ...next, "mise.toml": '[tools]\nnode = { version = "20" }' }, "20"],
  ])("reads %s as its own tool reads it", async (_, files, version) => {
    expect((await analyzeFiles(files)).runtimeVersion).toBe(version);
  });

  test.each([
    [{ ...flask, ".python-version": "3.14" }, "3.14", "FROM python:3.14-slim"],
    [
      { ...flask, "pyproject.toml": '[project]\nrequires-python = ">=3.14"' },
      "3.14",
      "FROM python:3.14-slim",
    ],
    [{ ...flask, ".python-version": "3.130" }, "3.13", "FROM python:3.13-slim"],
    [{ ...next, ".nvmrc": "26" }, "26", "FROM node:26-slim"],
    [{ ...next, ".nvmrc": "v25.1.0" }, "25", "FROM node:25-slim"],
    [{ ...next, ".nvmrc": ">=26 <30" }, "26", "FROM node:26-slim"],
    [{ ...next, ".nvmrc": "220" }, "22", "FROM node:22-slim"],
    [{ ...next, ".nvmrc": "18" }, "22", "FROM node:22-slim"],
  ] as [Files, string, string][])(
    "uses a runtime from its registry when it is newer than this host's: %j",
    async (files, version, from) => {
      const analysis = await analyzeFiles(files);
      expect(analysis.runtimeVersion).toBe(version);
      expect(analysis.recipe).toContain(`${from}\n`);
      const isNewer = !/:(?:22|3\.13)-/.test(from);
      const warning = `${from.slice(5)} comes from its registry, and the build fails if this host reaches no registry`;
      expect(analysis.warnings.some((line) => line.startsWith(warning))).toBe(isNewer);
      expect(analysis.warnings.some((line) => line.includes("is unavailable"))).toBe(!isNewer);
    },
  );

  test("uses a Python version that this host makes, and warns about a version from a registry", async () => {
    const pinned = await analyzeFiles({ ...flask, ".python-version": "3.12" });
    expect(pinned.runtimeVersion).toBe("3.12");
    expect(pinned.warnings).toContainEqual(expect.stringContaining("Python 3.12 comes from a registry"));
    const free = await analyzeFiles({ ...flask, "pyproject.toml": '[project]\nrequires-python = ">=3.11"' });
    expect(free.runtimeVersion).toBe("3.13");
    expect(free.warnings.join()).not.toContain("registry");
  });

  test.each([
    ["npm", { "package-lock.json": "{}" }],
    ["yarn", { "yarn.lock": "# yarn lockfile v1" }],
    ["pnpm", { "pnpm-lock.yaml": "lockfileVersion: '9.0'" }],
  ])("lets %s install when the requested Node.js version is replaced", async (_, lock) => {
    const manifest = { dependencies: { next: "15.1.0" }, engines: { node: "16.x" } };
    const { recipe } = await analyzeFiles({ "package.json": JSON.stringify(manifest), ...lock });
    expect(recipe).toContain("YARN_IGNORE_ENGINES=");
    expect(recipe).toContain("npm_config_engine_strict=");
    expect((await analyzeFiles(next)).recipe).not.toContain("ENGINE");
  });
});

test.each([
  ["docker-compose.yml", "deploy each service as a project"],
  ["compose.yaml", "deploy each service as a project"],
  ["vercel.json", "set its commands in the project's settings"],
  ["netlify.toml", "set its commands in the project's settings"],
  ["nixpacks.toml", "set its commands in the project's settings"],
])("warns that the configuration in %s is ignored", async (file, cure) => {
  const { warnings } = await analyzeFiles({ ...vite, [file]: "" });
  expect(warnings).toContainEqual(expect.stringContaining(`${file} is not followed: ${cure}`));
});

test("starts a Streamlit app with Streamlit on PORT", async () => {
  const found = await analyzeFiles({
    "requirements.txt": "streamlit==1.40.0",
    "Home.py": "import streamlit as st",
  });
  expect(found.startCommand).toContain("streamlit run Home.py --server.port $PORT");
});

test("warns about dependencies without pinned versions", async () => {
  const warning = expect.stringContaining("pins no versions");
  expect((await analyzeFiles({ "requirements.txt": "", "main.py": "" })).warnings).not.toContainEqual(
    warning,
  );
  expect((await analyzeFiles({ "requirements.txt": "flask", "main.py": "" })).warnings).toContainEqual(
    warning,
  );
});

test("names root_directory in the warning for Go sources outside a module", async () => {
  const { recipe, warnings } = await analyzeFiles({ "main.go": "package main" });
  expect(recipe).toBeNull();
  expect(warnings.join("\n")).toContain("set root_directory to the module");
});
