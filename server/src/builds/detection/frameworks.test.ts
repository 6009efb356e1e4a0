/**
 * Compares our table with the list of @vercel/frameworks. For every framework in both, our detection must recognise the
 * smallest repository that their list recognises. The build command and the output directory must be equal.
 */
import { type Framework as Theirs, frameworks as list } from "@vercel/frameworks";
import { expect, test } from "vitest";
import { analyze } from "./detection.ts";
import { frameworks, pythonFrameworks } from "./frameworks.ts";
import { memoryTree } from "./testing/memory-tree.ts";

type Detector = NonNullable<NonNullable<Theirs["detectors"]>["every"]>[number];

/** Maps ids of our table to slugs of their list. */
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

// The literal types of the list share no fields.
const known = new Map(
  (list as unknown as Theirs[]).map((framework) => [framework.slug as string, framework]),
);

test("maps every framework of our table to the list of @vercel/frameworks", () => {
  const ours = [...frameworks, ...pythonFrameworks].map((framework) => framework.id);
  expect(Object.keys(both)).toEqual(expect.arrayContaining(ours));
});

test.each(Object.entries(both))("detects %s like %s of @vercel/frameworks", async (id, slug) => {
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

/** Pairs of which their list prefers the first framework; our table must prefer it too. */
const outranked = Object.entries(both).flatMap(([id, slug]) =>
  (known.get(slug)?.supersedes ?? []).flatMap((lower) =>
    Object.values(both).includes(lower) ? [[id, slug, lower] as const] : [],
  ),
);

test.each(outranked)("prefers %s (%s) to %s in a repository of both", async (id, slug, lower) => {
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
    // This detector matches a dependency in the text of package.json.
    else if (detector.path === "package.json") dependencies["@sveltejs/kit"] = "2.0.0";
    else files[detector.path ?? ""] = textFor(detector, framework);
  }
  const isOther = ["requirements.txt", "go.mod"].some((file) => file in files);
  return isOther ? files : { ...files, "package.json": JSON.stringify({ dependencies }) };
}

/** Returns a file's text that the detector's pattern matches. */
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
