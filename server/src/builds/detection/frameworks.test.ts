/**
 * Compares our table with @vercel/frameworks. For every shared framework, the smallest repository that theirs detects
 * must be detected here as the same, with the same build command and output directory.
 */
import { type Framework as Theirs, frameworks as list } from "@vercel/frameworks";
import { expect, test } from "vitest";
import { analyze } from "./detection.ts";
import { frameworks, pythonFrameworks } from "./frameworks.ts";
import { memoryTree } from "./testing/memory-tree.ts";

type Detector = NonNullable<NonNullable<Theirs["detectors"]>["every"]>[number];

/** Our id → their slug. */
const both: Record<string, string> = {
  nextjs: "nextjs",
  nuxt: "nuxtjs",
  sveltekit: "sveltekit-1",
  "react-router": "react-router",
  remix: "remix",
  astro: "astro",
  "tanstack-start": "tanstack-start",
  solidstart: "solidstart-1",
  nestjs: "nestjs",
  gatsby: "gatsby",
  docusaurus: "docusaurus-2",
  eleventy: "eleventy",
  vitepress: "vitepress",
  hexo: "hexo",
  angular: "angular",
  "create-react-app": "create-react-app",
  "vue-cli": "vue",
  vite: "vite",
  parcel: "parcel",
  fastify: "fastify",
  koa: "koa",
  hono: "hono",
  express: "express",
  node: "node",
  django: "django",
  fastapi: "fastapi",
  flask: "flask",
  python: "python",
  go: "go",
};

// The list's literal types share no fields.
const known = new Map(
  (list as unknown as Theirs[]).map((framework) => [framework.slug as string, framework]),
);

test("compares every framework of ours with theirs", () => {
  const ours = [...frameworks, ...pythonFrameworks].map((framework) => framework.id);
  expect(Object.keys(both)).toEqual(expect.arrayContaining(ours));
});

test.each(Object.entries(both))("detects %s as they detect %s", async (id, slug) => {
  const framework = known.get(slug);
  const files = leastRepository(framework);
  expect(recognises(framework, files), "their list detects the repository").toBe(true);

  const analysis = await analyze(memoryTree(files));

  expect(analysis?.framework).toBe(id);
  const { outputDirectory, buildCommand } = framework?.settings ?? {};
  if (analysis?.runtime !== "static") return;
  if (outputDirectory && "value" in outputDirectory)
    expect(analysis.outputDirectory).toBe(outputDirectory.value);
  expect(analysis.buildCommand).toBe(buildCommand?.value?.replace("npx @11ty/", ""));
});

/** If theirs outranks another, ours must outrank it too. */
const outranked = Object.entries(both).flatMap(([id, slug]) =>
  (known.get(slug)?.supersedes ?? []).flatMap((lower) =>
    Object.values(both).includes(lower) ? [[id, slug, lower] as const] : [],
  ),
);

test.each(outranked)("%s (%s) outranks %s", async (id, slug, lower) => {
  const [a, b] = [leastRepository(known.get(slug)), leastRepository(known.get(lower))];
  const merged = { ...b, ...a, "package.json": mergedManifest(a, b) };

  expect((await analyze(memoryTree(merged)))?.framework).toBe(id);
});

function leastRepository(framework: Theirs | undefined): Record<string, string> {
  const { every = [], some = [] } = framework?.detectors ?? {};
  const files: Record<string, string> = {};
  const dependencies: Record<string, string> = {};
  for (const detector of [...every, ...some.slice(0, 1)]) {
    if (detector.matchPackage) dependencies[detector.matchPackage] = "1.0.0";
    // A detector that matches a dependency in the text of package.json.
    else if (detector.path === "package.json") dependencies["@sveltejs/kit"] = "2.0.0";
    else files[detector.path ?? ""] = textFor(detector, framework);
  }
  const isOther = ["requirements.txt", "go.mod"].some((file) => file in files);
  return isOther ? files : { ...files, "package.json": JSON.stringify({ dependencies }) };
}

/** A text that matches a detector's pattern. */
function textFor({ matchContent }: Detector, framework: Theirs | undefined): string {
  if (matchContent === undefined) return "module example\n\npackage main\n";
  const { name = "", slug } = framework ?? {};
  const texts = [
    name.toLowerCase(),
    matchContent,
    `import it from "${slug}"`,
    'import { it } from "@nestjs/core"',
  ];
  return texts.find((text) => new RegExp(matchContent, "m").test(text)) ?? "";
}

function recognises(framework: Theirs | undefined, files: Record<string, string>): boolean {
  const holds = ({ path, matchContent, matchPackage }: Detector): boolean => {
    const text = files[matchPackage ? "package.json" : (path ?? "")];
    if (matchPackage) return text?.includes(`"${matchPackage}":`) ?? false;
    return text !== undefined && (matchContent === undefined || new RegExp(matchContent, "m").test(text));
  };
  const { every = [], some } = framework?.detectors ?? {};
  return every.every(holds) && (some?.some(holds) ?? true);
}

function mergedManifest(a: Record<string, string>, b: Record<string, string>): string {
  const of = (files: Record<string, string>): object =>
    (JSON.parse(files["package.json"] ?? "{}") as { dependencies?: object }).dependencies ?? {};
  return JSON.stringify({ dependencies: { ...of(a), ...of(b) } });
}
