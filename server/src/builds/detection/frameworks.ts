/**
 * Detected frameworks as data: their evidence, their build, and the files that run. A new framework is a new row. Among
 * matching rows of one rank the first wins. The facts come from each framework's own documents on deployment.
 */

/**
 * - `app`: a framework that decides how the whole repository is built and run
 * - `server`: a library of a program that listens by itself
 * - `site`: a builder of files; a server that is started beside it serves them
 */
type Rank = "app" | "server" | "site";

/** Run parameters: either a program that listens (`start`) or a directory that is served (`output`). */
export interface Shape {
  start?: string;
  /** Files of the built tree that `start` needs. Default: the whole tree. */
  ships?: readonly (readonly [from: string, to: string])[];
  /** True if a start script of package.json must not replace `start`. */
  onlyStart?: boolean;
  output?: string;
  /** Matches another output directory in the text of the configuration. */
  outputIn?: RegExp;
  /** File served for every unknown path of the site. Default: none, unknown paths return 404. */
  fallback?: string;
  /** Matches the fallback file in the text of the configuration. */
  fallbackIn?: RegExp;
  /** Path below which every file name contains a hash of the file's content. */
  hashed?: string;
  env?: Readonly<Record<string, string>>;
  buildEnv?: Readonly<Record<string, string>>;
  /** Cache directories of the build, below the app's directory. */
  buildCaches?: readonly string[];
  /** Warning for apps of this shape. */
  warn?: string;
}

interface Variant extends Shape {
  /** Conditions of the variant, of which any one suffices. */
  when: { config?: RegExp; build?: RegExp; version?: RegExp; file?: string };
  /** Evidence for the variant. The text continues the name of the configuration file or the framework. */
  because: string;
}

export interface Framework extends Shape {
  id: string;
  name: string;
  rank: Rank;
  /** Names of packages. The framework is detected if any is a dependency, or by `configSays`. */
  packages: readonly string[];
  /** Matches the text of a configuration file. */
  configSays?: RegExp;
  /** Names of configuration files without their extension. The extension is js, mjs, cjs, ts, mts, cts or json. */
  config?: readonly string[];
  /** Build command if package.json has no script `build`. */
  build?: string;
  port: number;
  /** Variants in order of precedence. The first whose condition holds overrides the fields that it has. */
  variants?: readonly Variant[];
}

const whole = (...paths: string[]): [string, string][] => paths.map((path) => [path, path]);

/** Files of a bundled server, which also needs package.json and node_modules. */
const withModules = (bundle: string): [string, string][] => whole(bundle, "package.json", "node_modules");

const otherHost = (adapter: string): string =>
  `the adapter builds for another host: use ${adapter}, or the app has no server to start`;

export const frameworks: readonly Framework[] = [
  {
    id: "nextjs",
    name: "Next.js",
    rank: "app",
    packages: ["next"],
    config: ["next.config"],
    build: "next build",
    start: "next start",
    port: 3000,
    env: { HOSTNAME: "0.0.0.0", NEXT_TELEMETRY_DISABLED: "1" },
    buildEnv: { NEXT_TELEMETRY_DISABLED: "1" },
    buildCaches: [".next/cache"],
    variants: [
      {
        when: { config: /\boutput\s*:\s*["'`]export["'`]/ },
        because: "sets output to export: the site is files",
        output: "out",
        hashed: "/_next/static/",
      },
      {
        when: { config: /\boutput\s*:\s*["'`]standalone["'`]/ },
        because: "sets output to standalone: the server is shipped without node_modules",
        start: "node server.js",
        onlyStart: true,
        ships: [
          [".next/standalone", "."],
          [".next/static", ".next/static"],
          ["public", "public"],
        ],
      },
    ],
  },
  {
    id: "nuxt",
    name: "Nuxt",
    rank: "app",
    packages: ["nuxt", "nuxt3", "nuxt-nightly", "nuxt-edge"],
    config: ["nuxt.config"],
    build: "nuxt build",
    start: "node .output/server/index.mjs",
    ships: whole(".output"),
    port: 3000,
    variants: [
      {
        when: { build: /\bnuxi?t? generate\b/ },
        because: "generates files",
        output: ".output/public",
        fallback: "200.html",
        hashed: "/_nuxt/",
      },
      { when: { version: /^[\^~v=]?2\b/ }, because: "is of version 2", start: "nuxt start", ships: [] },
    ],
  },
  {
    id: "sveltekit",
    name: "SvelteKit",
    rank: "app",
    packages: ["@sveltejs/kit"],
    config: ["svelte.config", "vite.config"],
    build: "vite build",
    start: "node build",
    ships: withModules("build"),
    port: 3000,
    variants: [
      {
        when: { config: /@sveltejs\/adapter-static/ },
        because: "uses adapter-static",
        output: "build",
        fallbackIn: /\bfallback\s*:\s*["'`]([\w.-]+)["'`]/,
        hashed: "/_app/immutable/",
      },
      { when: { config: /@sveltejs\/adapter-node/ }, because: "uses adapter-node" },
      {
        when: { config: /@sveltejs\/adapter-auto/ },
        because: "uses adapter-auto, which selects adapter-node here",
        // The only entry in the list of adapter-auto that selects adapter-node. The build then installs adapter-node by
        // itself.
        buildEnv: { GCP_BUILDPACKS: "1" },
      },
      {
        when: { config: /@sveltejs\/adapter-\w+/ },
        because: "names an adapter",
        warn: otherHost("@sveltejs/adapter-node"),
      },
    ],
  },
  {
    id: "react-router",
    name: "React Router",
    rank: "app",
    packages: ["@react-router/dev"],
    config: ["react-router.config", "vite.config"],
    configSays: /@react-router\/dev/,
    build: "react-router build",
    start: "react-router-serve ./build/server/index.js",
    port: 3000,
    variants: [
      {
        when: { config: /\bssr\s*:\s*false\b/ },
        because: "turns server rendering off",
        output: "build/client",
        fallback: "index.html",
      },
    ],
  },
  {
    id: "remix",
    name: "Remix",
    rank: "app",
    packages: ["@remix-run/dev"],
    config: ["remix.config", "vite.config"],
    build: "remix vite:build",
    start: "remix-serve ./build/server/index.js",
    port: 3000,
    variants: [
      {
        when: { config: /\bssr\s*:\s*false\b/ },
        because: "turns server rendering off",
        output: "build/client",
        fallback: "index.html",
      },
      {
        when: { file: "remix.config.js", build: /\bremix build\b/ },
        because: "is built by the classic compiler",
        start: "remix-serve ./build/index.js",
      },
    ],
  },
  {
    id: "astro",
    name: "Astro",
    rank: "app",
    packages: ["astro"],
    config: ["astro.config"],
    build: "astro build",
    output: "dist",
    outputIn: /\boutDir\s*:\s*["'`]([^"'`]+)["'`]/,
    hashed: "/_astro/",
    port: 4321,
    variants: [
      {
        when: { config: /@astrojs\/node/ },
        because: "uses the Node adapter",
        start: "node ./dist/server/entry.mjs",
        ships: withModules("dist"),
      },
      {
        when: { config: /@astrojs\/(?:vercel|netlify|cloudflare)/ },
        because: "names an adapter",
        warn: otherHost("@astrojs/node"),
      },
    ],
  },
  {
    id: "tanstack-start",
    name: "TanStack Start",
    rank: "app",
    packages: ["@tanstack/react-start", "@tanstack/solid-start"],
    config: ["vite.config", "app.config"],
    build: "vite build",
    start: "node .output/server/index.mjs",
    ships: whole(".output"),
    port: 3000,
  },
  {
    id: "solidstart",
    name: "SolidStart",
    rank: "app",
    packages: ["@solidjs/start"],
    config: ["app.config"],
    build: "vinxi build",
    start: "node .output/server/index.mjs",
    ships: whole(".output"),
    port: 3000,
  },
  {
    id: "nestjs",
    name: "NestJS",
    rank: "app",
    packages: ["@nestjs/core"],
    build: "nest build",
    start: "node dist/main",
    port: 3000,
  },
  {
    id: "gatsby",
    name: "Gatsby",
    rank: "site",
    packages: ["gatsby"],
    build: "gatsby build",
    output: "public",
    port: 8080,
  },
  {
    id: "docusaurus",
    name: "Docusaurus",
    rank: "site",
    packages: ["@docusaurus/core"],
    build: "docusaurus build",
    output: "build",
    port: 8080,
  },
  {
    id: "eleventy",
    name: "Eleventy",
    rank: "site",
    packages: ["@11ty/eleventy"],
    config: [".eleventy", "eleventy.config"],
    build: "eleventy",
    output: "_site",
    outputIn: /\boutput\s*:\s*["'`]([^"'`]+)["'`]/,
    port: 8080,
  },
  {
    id: "vitepress",
    name: "VitePress",
    rank: "site",
    packages: ["vitepress"],
    config: [".vitepress/config"],
    build: "vitepress build docs",
    output: "docs/.vitepress/dist",
    port: 8080,
    variants: [
      {
        when: { config: /[^]/, build: /\bvitepress build\s*$/ },
        because: "has its pages in the app's own directory",
        output: ".vitepress/dist",
      },
    ],
  },
  {
    id: "hexo",
    name: "Hexo",
    rank: "site",
    packages: ["hexo"],
    build: "hexo generate",
    output: "public",
    port: 8080,
  },
  {
    id: "angular",
    name: "Angular",
    rank: "site",
    packages: ["@angular/cli"],
    build: "ng build",
    output: "dist",
    fallback: "index.html",
    port: 4000,
  },
  {
    id: "create-react-app",
    name: "Create React App",
    rank: "site",
    packages: ["react-scripts"],
    build: "react-scripts build",
    output: "build",
    fallback: "index.html",
    port: 8080,
  },
  {
    id: "vue-cli",
    name: "Vue CLI",
    rank: "site",
    packages: ["@vue/cli-service"],
    config: ["vue.config"],
    build: "vue-cli-service build",
    output: "dist",
    outputIn: /\boutputDir\s*:\s*["'`]([^"'`]+)["'`]/,
    fallback: "index.html",
    port: 8080,
  },
  {
    id: "vite",
    name: "Vite",
    rank: "site",
    packages: ["vite"],
    config: ["vite.config"],
    build: "vite build",
    output: "dist",
    outputIn: /\boutDir\s*:\s*["'`]([^"'`]+)["'`]/,
    fallback: "index.html",
    port: 8080,
  },
  {
    id: "parcel",
    name: "Parcel",
    rank: "site",
    packages: ["parcel"],
    build: "parcel build",
    output: "dist",
    fallback: "index.html",
    port: 8080,
  },
  { id: "fastify", name: "Fastify", rank: "server", packages: ["fastify"], port: 3000 },
  { id: "koa", name: "Koa", rank: "server", packages: ["koa"], port: 3000 },
  { id: "hono", name: "Hono", rank: "server", packages: ["hono"], port: 3000 },
  { id: "express", name: "Express", rank: "server", packages: ["express"], port: 3000 },
];

/** A web framework of Python, with the pattern of its app object and its server. */
export interface PythonFramework {
  id: string;
  name: string;
  package: string;
  /** Matches the app's variable in a module. */
  appIn?: RegExp;
  /** Start command, in which `{app}` stands for the app's import path. */
  start: string;
  /** Package that `start` needs. The recipe installs it if it is not a dependency. */
  server: string;
  /** Matches other packages that include the server, with their extras. */
  serverIn?: RegExp;
}

export const pythonFrameworks: readonly PythonFramework[] = [
  {
    id: "django",
    name: "Django",
    package: "django",
    start: "gunicorn --bind 0.0.0.0:$PORT {app}",
    server: "gunicorn",
  },
  {
    id: "fastapi",
    name: "FastAPI",
    package: "fastapi",
    appIn: /^(\w+)(?:[ \t]*:[ \t]*\w+)?[ \t]*=[ \t]*(?:fastapi\.)?FastAPI\(/m,
    start: "uvicorn --host 0.0.0.0 --port $PORT {app}",
    server: "uvicorn",
    serverIn: /^fastapi\[[^\]]*\b(?:standard|all)\b/i,
  },
  {
    id: "flask",
    name: "Flask",
    package: "flask",
    appIn: /^(\w+)(?:[ \t]*:[ \t]*\w+)?[ \t]*=[ \t]*(?:flask\.)?Flask\(/m,
    start: "gunicorn --bind 0.0.0.0:$PORT {app}",
    server: "gunicorn",
  },
];

/** Packages that need more Debian packages than a slim image has, to build or to run. */
export const systemNeeds: readonly { package: string; build: readonly string[]; run: readonly string[] }[] = [
  { package: "@prisma/client", build: ["openssl"], run: ["openssl"] },
  { package: "psycopg2", build: ["gcc", "libc6-dev", "libpq-dev", "python3-dev"], run: ["libpq5"] },
  {
    package: "mysqlclient",
    build: ["gcc", "libc6-dev", "default-libmysqlclient-dev", "pkg-config", "python3-dev"],
    run: ["libmariadb3"],
  },
];
