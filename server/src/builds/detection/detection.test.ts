import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { analyze, type Analysis, type AnalyzeOptions } from "./detection.ts";
import { recipeOf } from "./recipe.ts";
import { instructionsOf } from "./testing/dockerfile-lines.ts";
import { memoryTree } from "./testing/memory-tree.ts";

type Files = Record<string, string>;

async function analyzeFiles(files: Files, options?: AnalyzeOptions): Promise<Analysis> {
  const analysis = await analyze(memoryTree(files), options);
  if (analysis === undefined) throw new Error("the repository is empty");
  return analysis;
}

/** Returns a repository's package.json with these fields. */
const node = (manifest: object): Files => ({ "package.json": JSON.stringify(manifest) });
const npm: Files = { "package-lock.json": "{}" };

interface Case {
  title: string;
  files: Files;
  options?: AnalyzeOptions;
  is: Partial<Analysis>;
  /** `because`: sentences that the evidence must contain. `warns`: sentences that the warnings must contain. */
  because?: string[];
  warns?: string[];
}

const cases: Record<string, Case[]> = {
  precedence: [
    {
      title: "uses the repository's own Dockerfile unchanged",
      files: {
        ...node({ dependencies: { next: "15.1.0" } }),
        Dockerfile:
          "FROM scratch\nEXPOSE 80\nEXPOSE 9000/tcp\nHEALTHCHECK CMD curl http://localhost:9000/healthz\n",
      },
      is: { framework: "dockerfile", port: 9000, healthCheckPath: "/healthz", buildCommand: null },
      because: ["Dockerfile exposes port 9000", "Dockerfile checks /healthz"],
    },
    {
      title: "uses port 8080 for a Dockerfile that exposes none",
      files: { Dockerfile: "FROM scratch" },
      is: { port: 8080, healthCheckPath: "/" },
      warns: ["Dockerfile exposes no port: 8080 is used, and set as PORT"],
    },
    {
      title: "then uses a Procfile's line for web",
      files: {
        ...node({ dependencies: { express: "5.0.0" }, scripts: { start: "node a.js" } }),
        ...npm,
        Procfile: "web: node b.js --port 4100\nworker: node c.js\r\nrelease: node d.js",
      },
      is: { framework: "express", startCommand: "node b.js --port 4100", port: 4100 },
      because: ["Procfile starts web by node b.js --port 4100"],
      warns: [
        "Procfile: only web is run, not worker",
        "Procfile: release is not run; put it before the start, or into build_command",
      ],
    },
    {
      title: "a Procfile turns a site into a server",
      files: { ...node({ devDependencies: { vite: "6.0.0" } }), ...npm, Procfile: "web: node serve.js" },
      is: { framework: "vite", runtime: "node", startCommand: "node serve.js", outputDirectory: null },
    },
    {
      title: "uses the framework that the owner sets",
      files: { ...node({ dependencies: { express: "5.0.0" }, devDependencies: { vite: "6.0.0" } }), ...npm },
      options: { framework: "vite" },
      is: { framework: "vite", outputDirectory: "dist" },
    },
    {
      title: "ignores the owner's framework if its files are missing",
      files: { "index.html": "" },
      options: { framework: "django" },
      is: { framework: "static" },
      warns: ["the repository has no files of django: the detected framework is used"],
    },
  ],
  "configured frameworks": [
    {
      title: "Next.js",
      files: { ...node({ dependencies: { next: "15.1.0" } }), ...npm },
      is: { framework: "nextjs", buildCommand: "next build", startCommand: "next start", port: 3000 },
      because: ["package.json depends on next 15.1.0", "package-lock.json belongs to npm"],
    },
    {
      title: "Next.js with a static export",
      files: {
        ...node({ dependencies: { next: "15.1.0" }, scripts: { start: "next start" } }),
        ...npm,
        "next.config.mjs": 'export default {\n  output: "export",\n};',
      },
      is: { runtime: "static", outputDirectory: "out", startCommand: null, port: 8080 },
      because: ["next.config.mjs sets output to export: the site is files"],
    },
    {
      title: "ignores a setting in a comment",
      files: {
        ...node({ dependencies: { next: "15.1.0" } }),
        ...npm,
        "next.config.mjs": 'export default {\n  // output: "export",\n  /* output: "standalone" */\n};',
      },
      is: { runtime: "node", startCommand: "next start" },
    },
    {
      title: "Nuxt with generated files",
      files: { ...node({ dependencies: { nuxt: "3.14.0" }, scripts: { build: "nuxt generate" } }), ...npm },
      is: { runtime: "static", outputDirectory: ".output/public" },
    },
    {
      title: "Nuxt 2",
      files: { ...node({ dependencies: { nuxt: "^2.17.0" } }), ...npm },
      is: { startCommand: "nuxt start" },
      because: ["Nuxt is of version 2"],
    },
    {
      title: "SvelteKit as files",
      files: {
        ...node({ devDependencies: { "@sveltejs/kit": "2.0.0" } }),
        ...npm,
        "svelte.config.js": "import adapter from '@sveltejs/adapter-static';",
      },
      is: { runtime: "static", outputDirectory: "build" },
    },
    {
      title: "SvelteKit for another host",
      files: {
        ...node({ devDependencies: { "@sveltejs/kit": "2.0.0" } }),
        ...npm,
        "svelte.config.js": "import adapter from '@sveltejs/adapter-vercel';",
      },
      is: { runtime: "node" },
      warns: [
        "svelte.config.js: the adapter builds for another host: use @sveltejs/adapter-node, or the app has no server to start",
      ],
    },
    {
      title: "Astro with the Node adapter",
      files: {
        ...node({ dependencies: { astro: "5.0.0", "@astrojs/node": "9.0.0" } }),
        ...npm,
        "astro.config.mjs": 'import node from "@astrojs/node";',
      },
      is: { runtime: "node", startCommand: "node ./dist/server/entry.mjs", port: 4321 },
    },
    {
      title: "React Router without a server",
      files: {
        ...node({ devDependencies: { "@react-router/dev": "7.0.0" } }),
        ...npm,
        "react-router.config.ts": "export default { ssr: false };",
      },
      is: { runtime: "static", outputDirectory: "build/client" },
    },
    {
      title: "Vite with its own output directory",
      files: {
        ...node({ devDependencies: { vite: "6.0.0" } }),
        ...npm,
        "vite.config.ts": "export default { build: { outDir: './public_html/' } };",
      },
      is: { outputDirectory: "public_html" },
      because: ["vite.config.ts writes to public_html"],
    },
    {
      title: "Vite with an output directory outside of the app",
      files: {
        ...node({ devDependencies: { vite: "6.0.0" } }),
        ...npm,
        "vite.config.ts": "export default { build: { outDir: '../../etc' } };",
      },
      is: { outputDirectory: "dist" },
      warns: ["vite.config.ts writes to ../../etc, which is outside of the app: set output_directory"],
    },
    {
      title: "Angular with angular.json",
      files: {
        ...node({
          devDependencies: { "@angular/cli": "19.0.0" },
          scripts: { start: "ng serve", build: "ng build" },
        }),
        ...npm,
        "angular.json": JSON.stringify({
          projects: {
            shop: { architect: { build: { builder: "@angular/build:application", options: {} } } },
          },
        }),
      },
      is: { runtime: "static", outputDirectory: "dist/shop/browser", buildCommand: "npm run build" },
    },
    {
      title: "NestJS with its production script",
      files: {
        ...node({
          dependencies: { "@nestjs/core": "11.0.0" },
          devDependencies: { "@nestjs/cli": "11.0.0" },
          scripts: { build: "nest build", start: "nest start", "start:prod": "node dist/main" },
        }),
        ...npm,
      },
      is: { framework: "nestjs", startCommand: "node dist/main" },
      because: ["package.json's script start:prod runs node dist/main"],
    },
    {
      title: "a server beside a site builder serves the site",
      files: {
        ...node({
          dependencies: { express: "5.0.0" },
          devDependencies: { vite: "6.0.0" },
          scripts: { build: "vite build", start: "NODE_ENV=production node server.js" },
        }),
        ...npm,
      },
      is: { framework: "express", runtime: "node", buildCommand: "npm run build" },
    },
    {
      title: "a site builder with a server library and no start is a site",
      files: {
        ...node({
          dependencies: { express: "5.0.0", "react-scripts": "5.0.0" },
          scripts: { build: "react-scripts build", start: "react-scripts start" },
        }),
        ...npm,
      },
      is: { framework: "create-react-app", outputDirectory: "build" },
    },
    {
      title: "a program without a framework, on the port in its source",
      files: { ...node({ main: "./lib/run.js" }), ...npm, "lib/run.js": "http.createServer().listen(4567)" },
      is: { framework: "node", startCommand: "node lib/run.js", port: 4567 },
      because: ["lib/run.js listens on port 4567"],
    },
    {
      title: "plain static files",
      files: { "docs/index.html": "", "readme.md": "" },
      is: { framework: "static", runtime: "static", outputDirectory: "docs", installCommand: null },
    },
  ],
  "package managers and versions of Node": [
    {
      title: "npm without a lockfile",
      files: node({ dependencies: { express: "5.0.0" }, scripts: { start: "node a.js" } }),
      is: { packageManager: "npm", installCommand: "npm install" },
      warns: ["there is no lockfile of npm: two builds of one commit may install different versions"],
    },
    {
      title: "npm without development dependencies",
      files: { ...node({ dependencies: { express: "5.0.0" }, scripts: { start: "node a.js" } }), ...npm },
      is: { installCommand: "npm ci --omit=dev" },
    },
    {
      title: "installs everything if a script runs during the install",
      files: {
        ...node({ dependencies: { express: "5.0.0" }, scripts: { start: "node a.js", prepare: "husky" } }),
        ...npm,
      },
      is: { installCommand: "npm ci" },
    },
    {
      title: "pnpm from package.json's packageManager, whatever lockfile is there",
      files: {
        ...node({ dependencies: { next: "15.1.0" }, packageManager: "pnpm@9.1.0+sha512.abc" }),
        "pnpm-lock.yaml": "lockfileVersion: '9.0'",
        ...npm,
      },
      is: { packageManager: "pnpm", installCommand: "pnpm install --frozen-lockfile" },
      because: ["package.json names pnpm 9.1.0 as its package manager"],
      warns: ["package-lock.json is ignored: pnpm is used"],
    },
    {
      title: "classic yarn",
      files: { ...node({ dependencies: { next: "15.1.0" } }), "yarn.lock": "# yarn lockfile v1" },
      is: { packageManager: "yarn", installCommand: "yarn install --frozen-lockfile" },
    },
    {
      title: "yarn berry from its lockfile",
      files: { ...node({ dependencies: { next: "15.1.0" } }), "yarn.lock": "__metadata:\n  version: 8" },
      is: { packageManager: "yarn", installCommand: "yarn install --immutable" },
    },
    {
      title: "bun",
      files: { ...node({ dependencies: { next: "15.1.0" } }), "bun.lock": "{}" },
      is: { packageManager: "bun", installCommand: "bun install --frozen-lockfile" },
    },
    ...(
      [
        [{}, { ".nvmrc": "lts/krypton\n" }, "24"],
        [{ engines: { node: ">=18" } }, {}, "22"],
        [{ engines: { node: "^20.10 || ^24" } }, {}, "24"],
        [{ engines: { node: "20.x" } }, {}, "20"],
        [{ volta: { node: "24.1.0" }, engines: { node: "22" } }, {}, "24"],
        [{ engines: { node: "16" } }, {}, "22"],
        [{ engines: { node: "not a range" } }, { ".node-version": "" }, "22"],
      ] as const
    ).map(([manifest, more, runtimeVersion]): Case => ({
      title: `Node ${runtimeVersion} from ${JSON.stringify({ ...manifest, ...more })}`,
      files: { ...node({ dependencies: { next: "15.1.0" }, ...manifest }), ...npm, ...more },
      is: { runtimeVersion },
    })),
    {
      title: "an unavailable Node.js version",
      files: { ...node({ dependencies: { next: "12.0.0" }, engines: { node: "14" } }), ...npm },
      is: { runtimeVersion: "22" },
      warns: ["package.json (engines) requests Node.js 14, which is unavailable: 22 is used"],
    },
  ],
  monorepos: [
    {
      title: "installs a member with its workspace, and builds it after its dependencies",
      files: {
        ...node({ private: true }),
        "pnpm-workspace.yaml": "packages: [apps/*]",
        "pnpm-lock.yaml": "",
        "apps/web/package.json": JSON.stringify({
          dependencies: { next: "15.1.0" },
          scripts: { build: "next build" },
        }),
      },
      options: { rootDirectory: "/apps/web/" },
      is: {
        framework: "nextjs",
        context: ".",
        buildCommand: 'cd ../.. && pnpm --filter "./apps/web..." --fail-if-no-match run build',
      },
      because: ["apps/web belongs to the workspace in the root: it is installed whole"],
    },
    {
      title: "uses a directory with its own lockfile as the context",
      files: {
        ...npm,
        "site/package.json": JSON.stringify({ devDependencies: { vite: "6.0.0" } }),
        "site/yarn.lock": "",
      },
      options: { rootDirectory: "site" },
      is: { framework: "vite", context: "site", packageManager: "yarn" },
    },
    {
      title: "lists the apps below the root",
      files: {
        ...node({ workspaces: ["apps/*"] }),
        "apps/web/package.json": JSON.stringify({ dependencies: { next: "15.1.0" } }),
        "apps/api/requirements.txt": "fastapi==0.115.0",
      },
      is: { framework: null, runtime: null, plan: null },
      warns: ["root_directory can be apps/web (Next.js), apps/api (FastAPI)"],
    },
    {
      title: "a missing root directory",
      files: { "readme.md": "" },
      options: { rootDirectory: "none" },
      is: { framework: null },
      warns: ["the repository has no directory none"],
    },
  ],
  Python: [
    {
      title: "Django from requirements.txt",
      files: {
        "requirements.txt": "Django==5.1.3\ngunicorn==23.0.0\n",
        "manage.py": 'os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")',
        "shop/wsgi.py": "",
        "shop/settings.py": 'STATIC_ROOT = BASE_DIR / "static"',
      },
      is: {
        framework: "django",
        packageManager: "pip",
        startCommand: "gunicorn --bind 0.0.0.0:$PORT shop.wsgi",
        buildCommand: "python manage.py collectstatic --noinput",
        port: 8000,
      },
      because: ["requirements.txt names Django==5.1.3", "shop/wsgi.py holds the app"],
    },
    {
      title: "FastAPI with uv and its own server",
      files: {
        "pyproject.toml":
          '[project]\nrequires-python = ">=3.13"\ndependencies = ["fastapi[standard]>=0.115"]',
        "uv.lock": "",
        "app/main.py": "api: FastAPI = FastAPI()\n",
      },
      is: {
        framework: "fastapi",
        packageManager: "uv",
        runtimeVersion: "3.13",
        installCommand: "uv sync --frozen --no-dev --no-install-project",
        startCommand: "uvicorn --host 0.0.0.0 --port $PORT app.main:api",
      },
    },
    {
      title: "Flask with Poetry, an app factory and no server",
      files: {
        "pyproject.toml": '[tool.poetry.dependencies]\npython = "~3.11"\nFlask = "^3.0"',
        "poetry.lock": "",
        "shop/__init__.py": "def create_app():\n    return Flask(__name__)\n",
      },
      is: {
        framework: "flask",
        packageManager: "poetry",
        runtimeVersion: "3.11",
        startCommand: "gunicorn --bind 0.0.0.0:$PORT 'shop:create_app()'",
      },
      warns: ["gunicorn serves the app and is no dependency of it: the recipe adds its latest version"],
    },
    {
      title: "Pipenv",
      files: {
        Pipfile: '[packages]\nflask = "*"\ngunicorn = "*"\n[requires]\npython_version = "3.11"',
        "Pipfile.lock": "{}",
        "app.py": "app = Flask(__name__)",
      },
      is: {
        packageManager: "pipenv",
        installCommand: "pipenv sync",
        runtimeVersion: "3.11",
        startCommand: "gunicorn --bind 0.0.0.0:$PORT app:app",
      },
    },
    {
      title: "a program without a framework",
      files: { "requirements.txt": "aiohttp==3.11.0", "main.py": "web.run_app(app, port=9100)" },
      is: { framework: "python", startCommand: "python main.py", port: 9100 },
    },
    {
      title: "a web framework outranks a site builder",
      files: { "requirements.txt": "Django==5.1.3", ...node({ devDependencies: { vite: "6.0.0" } }) },
      is: { framework: "django" },
      warns: ["Vite was detected too: Django is built"],
    },
    {
      title: "two web frameworks",
      files: { "requirements.txt": "flask==3.0.0\nfastapi==0.115.0", "main.py": "app = FastAPI()" },
      is: { framework: "fastapi" },
      warns: ["Flask is a dependency too: FastAPI is used"],
    },
  ],
  Go: [
    {
      title: "a program in the root",
      files: {
        "go.mod": "module example\n\ngo 1.23\n",
        "main.go": 'package main\n\nfunc main() { http.ListenAndServe(":9000", nil) }',
      },
      is: { framework: "go", runtimeVersion: "1.23", port: 9000, startCommand: "./bin/app" },
    },
    {
      title: "the likeliest of several programs",
      files: { "go.mod": "module example", "cmd/migrate/main.go": "", "cmd/server/main.go": "" },
      is: { buildCommand: "go build -trimpath -ldflags=-s -o bin/app ./cmd/server" },
      because: ["cmd/server is the program"],
      warns: ["cmd holds migrate, server: server is built"],
    },
  ],
  "repositories that cannot be built": [
    {
      title: "names an unsupported language",
      files: { Gemfile: "" },
      is: { framework: null },
      warns: [
        "Gemfile: Ruby needs a Dockerfile in the repository",
        "no framework was detected: add a Dockerfile, or set root_directory",
      ],
    },
    {
      title: "warns about a file that does not parse",
      files: { "package.json": "{", "pyproject.toml": "[[", "index.html": "" },
      is: { framework: "python", plan: null },
      warns: [
        "package.json is not valid JSON: it counts as empty",
        "pyproject.toml is not valid TOML: it counts as empty",
      ],
    },
  ],
};

describe.each(Object.entries(cases))("%s", (_, list) => {
  test.each(list)("$title", async ({ files, options, is, because = [], warns = [] }) => {
    const analysis = await analyzeFiles(files, options);
    expect(analysis).toMatchObject(is);
    expect(analysis.evidence).toEqual(expect.arrayContaining(because));
    expect(analysis.warnings).toEqual(expect.arrayContaining(warns));
    if (analysis.framework !== null)
      instructionsOf(recipeOf(analysis)?.replace(/^HEALTHCHECK.*$/m, "") ?? "");
  });
});

test("detects nothing in an empty repository", async () => {
  expect(await analyze(memoryTree({}))).toBeUndefined();
  expect(await analyze(memoryTree({ ".git/HEAD": "" }))).toBeUndefined();
});

test("refuses a root directory outside the repository, or with special characters", async () => {
  for (const rootDirectory of ["../up", "a/../../b", "a b", "$HOME", "a\nRUN b", "a*"])
    await expect(analyzeFiles({ a: "" }, { rootDirectory }), rootDirectory).rejects.toThrow(RangeError);
});

test("adds a repository's text to the evidence without line breaks", async () => {
  const { evidence } = await analyzeFiles(node({ dependencies: { next: `1\n2\u202E${"3".repeat(1000)}` } }));
  expect(evidence[0]).toMatch(/^package\.json depends on next 1 2 3+…$/);
});

/** Arbitrary text, or text in a format that detection parses, as content of any file. */
const anyText = fc.oneof(
  fc.string(),
  fc.json(),
  fc.constantFrom(
    "[project]\ndependencies = 3",
    "[tool]\npoetry = []",
    "web: \\\nRUN a",
    "EXPOSE 99999",
    "__metadata:",
  ),
);
const awkward = fc.oneof(
  fc.string(),
  fc.constantFrom("\nUSER root", "a \\", "<<EOF", "$(x)", '"', "${a}", "7"),
  fc.jsonValue(),
);
const manifest = fc.record(
  {
    dependencies: fc.oneof(
      fc.dictionary(fc.constantFrom("next", "express", "vite", "nuxt", "__proto__"), awkward),
      awkward,
    ),
    devDependencies: fc.oneof(
      fc.dictionary(fc.constantFrom("astro", "tsx", "@angular/cli"), awkward),
      awkward,
    ),
    scripts: fc.oneof(
      fc.dictionary(fc.constantFrom("build", "start", "start:prod", "prestart", "prepare"), awkward),
      awkward,
    ),
    engines: fc.oneof(fc.record({ node: awkward }), awkward),
    packageManager: fc.oneof(fc.constantFrom("pnpm@1.2.3\nRUN a", "yarn@4.0.0 b", "bun@1"), awkward),
    main: awkward,
    workspaces: awkward,
    volta: awkward,
  },
  { requiredKeys: [] },
);
const repository = fc
  .tuple(
    fc.dictionary(
      fc.constantFrom(
        ..."package.json pyproject.toml Pipfile requirements.txt manage.py go.mod main.go Procfile .nvmrc angular.json".split(
          " ",
        ),
        ..."next.config.js vite.config.ts yarn.lock pnpm-lock.yaml main.py app.py server.js .python-version turbo.json".split(
          " ",
        ),
      ),
      anyText,
    ),
    fc.option(manifest),
  )
  .map(([files, given]): Files => (given ? { ...files, "package.json": JSON.stringify(given) } : files));

test("never throws, and writes no instruction of a repository's text, for arbitrary files", async () => {
  await fc.assert(
    fc.asyncProperty(repository, async (files) => {
      const analysis = await analyze(memoryTree(files));
      const recipe = analysis ? recipeOf(analysis) : null;
      const instructions = instructionsOf(recipe ?? "");
      const users = instructions.filter(({ word }) => word === "USER");
      expect(users).toEqual(recipe === null ? [] : [{ word: "USER", flags: [], rest: "1000:1000" }]);
      expect(instructions.filter(({ word }) => word === "CMD").length).toBeLessThanOrEqual(1);
    }),
    { numRuns: 300 },
  );
});

test("reads half a megabyte of blanks in every file without delay", async () => {
  for (const filler of [" ", "\n", "/*", "[", "a \n"]) {
    const text = filler.repeat(Math.ceil((512 * 1024) / filler.length));
    const names =
      "pyproject.toml Pipfile requirements.txt manage.py main.py Procfile .nvmrc go.mod next.config.js";
    const files = Object.fromEntries(names.split(" ").map((name) => [name, text]));
    await analyzeFiles({
      ...files,
      ...node({ dependencies: { next: text, [text]: "1" }, scripts: { build: text } }),
    });
    await analyzeFiles({ "requirements.txt": `flask\n${text}`, "main.py": text });
    await analyzeFiles({ "package.json": text, "go.mod": text, "main.go": text });
    await analyzeFiles({ Dockerfile: text });
  }
});
