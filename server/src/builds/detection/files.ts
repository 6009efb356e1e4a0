/** Detects a directory of static files, which are served unchanged. */
import { posix } from "node:path";
import type { Candidate } from "./candidate.ts";
import type { Inspection } from "./inspection.ts";

const places = [".", "public", "dist", "build", "site", "www", "docs", "_site"];

export async function findFiles(view: Inspection, directory: string): Promise<Candidate | undefined> {
  const index = await view.first(places.map((place) => posix.join(directory, place, "index.html")));
  if (index === undefined) return undefined;
  const output = posix.relative(directory, posix.dirname(index)) || ".";
  return {
    framework: "static",
    name: "Static site",
    rank: "files",
    resolveBuild: async () => {
      view.because(
        `${posix.relative(directory, index)} exists, and no build tool: files are served unchanged`,
      );
      return {
        runtime: "static",
        runtimeVersion: null,
        packageManager: null,
        installCommand: null,
        buildCommand: null,
        startCommand: null,
        outputDirectory: output,
        port: 8080,
        plan: {
          context: directory,
          directory: ".",
          manager: null,
          run: { kind: "site", directory: output, fallback: null, hashed: null },
        },
      };
    },
  };
}
