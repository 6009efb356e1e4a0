import { spawnSync } from "node:child_process";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path, { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { analyze, type Analysis, type AnalyzeOptions } from "./detection.ts";
import type { Overrides } from "./plan.ts";
import { recipeOf } from "./recipe.ts";
import { memoryTree } from "./testing/memory-tree.ts";

const lock = "lockfileVersion: '9.0'";

/** A repository for each kind of recipe. */
const repositories: Record<string, { files: Record<string, string>; options?: AnalyzeOptions }> = {
  "next-standalone": {
    files: {
      "package.json": JSON.stringify({ dependencies: { next: "15.1.0" }, packageManager: "pnpm@9.15.0" }),
      "pnpm-lock.yaml": lock,
      "next.config.ts": 'export default { output: "standalone" };',
      "public/logo.svg": "",
    },
  },
  sveltekit: {
    files: {
      "package.json": JSON.stringify({
        devDependencies: { "@sveltejs/kit": "2.0.0" },
        scripts: { build: "vite build" },
      }),
      "package-lock.json": "{}",
      "svelte.config.js": 'import adapter from "@sveltejs/adapter-auto";',
    },
  },
  express: {
    files: {
      "package.json": JSON.stringify({
        dependencies: { express: "5.0.0" },
        scripts: { start: "node server.js" },
      }),
      "package-lock.json": "{}",
    },
  },
  vite: {
    files: {
      "package.json": JSON.stringify({
        devDependencies: { vite: "6.0.0" },
        scripts: { build: "vite build" },
      }),
      "bun.lock": "{}",
    },
  },
  workspace: {
    files: {
      "package.json": JSON.stringify({ workspaces: ["apps/*"] }),
      "yarn.lock": "__metadata:",
      "turbo.json": "{}",
      "apps/web/package.json": JSON.stringify({
        dependencies: { next: "15.1.0", "@prisma/client": "6.0.0" },
        scripts: { build: "next build" },
      }),
    },
    options: { rootDirectory: "apps/web" },
  },
  django: {
    files: {
      "requirements.txt": "Django==5.1.3\npsycopg2==2.9.10\n",
      "manage.py": '"DJANGO_SETTINGS_MODULE", "shop.settings"',
      "shop/wsgi.py": "",
      "shop/settings.py": "STATIC_ROOT = 1",
    },
  },
  fastapi: {
    files: {
      "pyproject.toml": '[project]\ndependencies = ["fastapi", "uvicorn"]',
      "uv.lock": "",
      "main.py": "app = FastAPI()",
    },
  },
  go: {
    files: { "go.mod": "module example", "go.sum": "", "main.go": "package main", "templates/a.html": "" },
  },
  static: { files: { "public/index.html": "" } },
};

async function recipe(name: string, overrides?: Overrides): Promise<string | null> {
  const { files, options } = repositories[name]!;
  return recipeOf((await analyze(memoryTree(files), options)) as Analysis, overrides);
}

test.each(Object.keys(repositories))("writes the recipe of %s", async (name) => {
  const file = path.join(import.meta.dirname, "testing/recipes", `${name}.Dockerfile`);
  await expect(await recipe(name)).toMatchFileSnapshot(file);
});

test("replaces detected values by the owner's settings", async () => {
  const text = await recipe("express", {
    installCommand: "npm ci --ignore-scripts",
    buildCommand: 'echo "a b"',
    startCommand: "node other.js",
    port: 4000,
    healthCheckPath: "/up?full=1",
  });
  expect(text).toContain("npm ci --ignore-scripts\n");
  expect(text).toContain('RUN ["/bin/sh", "-c", "echo \\"a b\\""]\n');
  expect(text).toContain('CMD ["node", "other.js"]\n');
  expect(text).toContain("PORT=4000\n");
  expect(text).toContain("EXPOSE 4000\n");
  expect(text).toContain('health-check-path="/up?full=1"\n');
});

test.each([
  ["dist", false],
  ["build/out", false],
  ["public", true],
])("checks in the build that a site's directory %j exists: %s", async (directory, isThere) => {
  const at = await mkdtemp(join(tmpdir(), "kontor-recipe-"));
  onTestFinished(() => rm(at, { recursive: true, force: true }));
  await mkdir(join(at, "public/build"), { recursive: true });
  await writeFile(join(at, "public/build/index.html"), "hello");
  const text = (await recipe("vite", { outputDirectory: directory }))!;
  const [, line = ""] = /^RUN (\["\/bin\/sh", "-c", "test -d .*\])$/m.exec(text) ?? [];
  const [program = "", ...args] = JSON.parse(line) as string[];
  const { status, stdout } = spawnSync(program, args, { cwd: at, encoding: "utf8", timeout: 10_000 });
  expect(status).toBe(isThere ? 0 : 1);
  const why = `kontor: The build wrote no directory ${directory}. Set output_directory to one that exists. index.html is in: ./public/build/index.html ; existing: public/ \n`;
  expect(stdout).toBe(isThere ? "" : why);
});

test("serves the owner's output directory as a site, and starts a server for a site with a start command", async () => {
  const site = await recipe("vite", { outputDirectory: "www", port: 8081 });
  expect(site).toContain("COPY --from=build /app/www /srv/\n");
  expect(site).toContain("listen 8081;");
  const server = await recipe("vite", { startCommand: "node server.js" });
  expect(server).not.toContain("nginx");
  expect(server).toContain("COPY --from=build --chown=1000:1000 /app /app\n");
});

test("installs a package manager only if a command uses it", async () => {
  expect(await recipe("fastapi")).toContain("pip install uv\n");
  const without = await recipe("fastapi", { installCommand: "pip install fastapi uvicorn" });
  expect(without).not.toContain("pip install uv\n");
  const started = await recipe("vite", { startCommand: "bun server.ts" });
  expect(started?.match(/npm install --global bun@1\n/g)).toHaveLength(2);
});

test("copies the whole build with development dependencies for the owner's start command", async () => {
  const text = await recipe("sveltekit", { startCommand: "vite preview" });
  expect(text).not.toContain("prune");
  expect(text).toContain("COPY --from=build --chown=1000:1000 /app /app\n");
  expect(await recipe("django", { startCommand: "daphne shop.asgi" })).toContain(
    "COPY --from=build /opt/venv /opt/venv\n",
  );
});

test("refuses settings with values that a Dockerfile cannot contain", async () => {
  const refused: Overrides[] = [
    { port: 0 },
    { port: 1.5 },
    { healthCheckPath: "up" },
    { healthCheckPath: '/"\nUSER root' },
    { healthCheckPath: "/$HOME" },
    { outputDirectory: "../../etc" },
    { outputDirectory: "a b\nUSER root" },
    { startCommand: "x".repeat(10_000) },
  ];
  for (const overrides of refused)
    await expect(recipe("vite", overrides), JSON.stringify(overrides)).rejects.toThrow(RangeError);
});

test("returns the repository's own Dockerfile, and null for a repository without a detected app", async () => {
  const own = (await analyze(memoryTree({ Dockerfile: "FROM scratch\n" }))) as Analysis;
  expect(recipeOf(own, { startCommand: "x" })).toBe("FROM scratch\n");
  const none = (await analyze(memoryTree({ "readme.md": "" }))) as Analysis;
  expect(recipeOf(none)).toBeNull();
});
