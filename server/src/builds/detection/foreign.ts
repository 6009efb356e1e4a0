/**
 * Languages and site generators that Kontor has no recipe for, with the files that reveal them. Their repositories need
 * a Dockerfile.
 */
import { posix } from "node:path";
import type { Candidate } from "./candidate.ts";
import type { Inspection } from "./inspection.ts";

interface Foreign {
  name: string;
  files: readonly string[];
  /** Matches names of files that a project may name freely, such as `app.csproj`. */
  pattern?: RegExp;
}

const foreign: readonly Foreign[] = [
  { name: "PHP", files: ["composer.json", "artisan", "index.php"] },
  { name: "Ruby", files: ["Gemfile", "config.ru"] },
  { name: "Java (Maven)", files: ["pom.xml"] },
  { name: "Java (Gradle)", files: ["build.gradle"] },
  { name: "Kotlin (Gradle)", files: ["build.gradle.kts"] },
  { name: "Scala", files: ["build.sbt"] },
  { name: "Rust", files: ["Cargo.toml"] },
  { name: "Elixir", files: ["mix.exs"] },
  { name: "Gleam", files: ["gleam.toml"] },
  { name: "Deno", files: ["deno.json", "deno.jsonc"] },
  { name: ".NET", files: [], pattern: /\.(?:csproj|fsproj|vbproj|sln|slnx)$/ },
  { name: "Swift", files: ["Package.swift"] },
  { name: "Zig", files: ["build.zig"] },
  { name: "Crystal", files: ["shard.yml"] },
  { name: "Dart", files: ["pubspec.yaml"] },
  { name: "Hugo", files: ["hugo.toml", "hugo.yaml", "hugo.json"] },
];

/** Matches start commands of programs that our images do not contain. */
const foreignPrograms =
  /^(?:\w+=\S+\s+)*(?:bundle|ruby|rails|rackup|puma|php|apache2|heroku-php-\w+|vendor\/bin\/[\w-]+|java|sbt|cargo|mix|elixir|deno|dotnet|swift|hugo|jekyll)\b/;

/** Ranks of candidates that are often a part of a program in another language, such as its pages or tools. */
const parts: readonly Candidate["rank"][] = ["site", "node-program", "python-program", "files"];

export interface ForeignFile {
  file: string;
  name: string;
}

/** Returns the languages found in the directory, once each, in the order of the table. */
export async function foreignFiles(view: Inspection, directory: string): Promise<ForeignFile[]> {
  const entries = await view.list(directory);
  const names = entries.filter(({ kind }) => kind === "file").map(({ name }) => name);
  const seen = foreign.flatMap(({ name, files, pattern }): ForeignFile[] => {
    const file = files.find((each) => names.includes(each)) ?? names.find((each) => pattern?.test(each));
    return file === undefined ? [] : [{ file, name }];
  });
  if (
    await isOldHugo(
      view,
      directory,
      entries.map(({ name }) => name),
    )
  )
    seen.push({ file: "config.toml", name: "Hugo" });
  return seen;
}

/**
 * True for Hugo's older configuration. Other programs use the same file name, so Hugo's directories must exist as well.
 */
async function isOldHugo(view: Inspection, directory: string, names: readonly string[]): Promise<boolean> {
  if (!names.includes("config.toml") || !names.includes("content")) return false;
  return /^\s*(?:baseURL|theme)\s*=/im.test((await view.text(posix.join(directory, "config.toml"))) ?? "");
}

/**
 * Jekyll's configuration. Other tools use the same file name, so the file counts only beside pages that no other tool
 * builds.
 */
export const jekyllFile: ForeignFile = { file: "_config.yml", name: "Jekyll" };

/** True if the candidate is a part of a program in another language, and must not be deployed alone. */
export function isPartOf(
  found: Pick<Candidate, "rank">,
  seen: readonly ForeignFile[],
  start?: string,
): boolean {
  if (start !== undefined && foreignPrograms.test(start)) return true;
  return seen.length > 0 && parts.includes(found.rank);
}

/** Configuration of other hosts and tools, which Kontor ignores. */
const notFollowed: readonly { files: readonly string[]; cure: string }[] = [
  {
    files: ["docker-compose.yml", "docker-compose.yaml", "compose.yml", "compose.yaml"],
    cure: "deploy each service as a project, and databases as add-ons",
  },
  {
    files: ["vercel.json", "netlify.toml", "render.yaml", "fly.toml", "railway.json", "railway.toml"],
    cure: "set its commands in the project's settings",
  },
  {
    files: ["nixpacks.toml", "railpack.json", "project.toml"],
    cure: "set its commands in the project's settings",
  },
];

export async function warnOfConfigurationNotFollowed(view: Inspection, directory: string): Promise<void> {
  for (const { files, cure } of notFollowed)
    for (const file of files)
      if (await view.has(posix.join(directory, file))) view.warn(`${file} is not followed: ${cure}`);
}
