/** Detects a Go module and its program. The recipe builds the program into one static binary. */
import { posix } from "node:path";
import type { Candidate, BuildSpec } from "./candidate.ts";
import { type Inspection, stripComments } from "./inspection.ts";
import { portIn } from "./node.ts";

/** Image of the Go toolchain, which downloads a later version if go.mod names one. */
const image = "golang:1.24-bookworm";

/** Directories that programs commonly read beside their binary. */
const dataDirectories = ["assets", "config", "migrations", "public", "static", "templates", "views", "web"];

export async function findGo(view: Inspection, directory: string): Promise<Candidate | undefined> {
  if (!(await view.has(posix.join(directory, "go.mod")))) return undefined;
  return {
    framework: "go",
    name: "Go",
    rank: "go",
    resolveBuild: (start) => resolveBuild(view, directory, start),
  };
}

async function resolveBuild(
  view: Inspection,
  directory: string,
  given: string | undefined,
): Promise<BuildSpec> {
  const at = (name: string): string => posix.join(directory, name);
  const version = /^go (\d+\.\d+)/m.exec((await view.text(at("go.mod"))) ?? "")?.[1];
  view.because(`go.mod is a module${version ? ` of Go ${version}` : ""}`);
  const program = await programOf(view, directory);
  const source = (await view.text(at(posix.join(program, "main.go")))) ?? "";
  const named = Number(/["'`]:(\d{2,5})["'`]/.exec(stripComments(source))?.[1] ?? portIn(source));
  const port = named > 0 && named < 65_536 ? named : 8080;
  if (port === named) view.because(`${posix.join(program, "main.go")} listens on port ${port}`);

  const names = (await view.list(directory)).filter((entry) => entry.kind === "directory");
  const data = names.map((entry) => entry.name).filter((name) => dataDirectories.includes(name));
  if (data.length > 0) view.because(`${data.join(", ")} are shipped beside the program`);
  const build = `go build -trimpath -ldflags=-s -o bin/app ${program === "." ? "." : `./${program}`}`;
  const start = given ?? "./bin/app";
  return {
    runtime: "go",
    runtimeVersion: version ?? null,
    packageManager: "go",
    installCommand: "go mod download",
    buildCommand: build,
    startCommand: start,
    outputDirectory: null,
    port,
    plan: {
      context: directory,
      directory: ".",
      manager: null,
      build: {
        image,
        packages: [],
        env: { CGO_ENABLED: "0" },
        setUp: [],
        manifests: (await view.has(at("go.sum"))) ? ["go.mod", "go.sum"] : ["go.mod"],
        caches: ["/go/pkg/mod"],
        install: "go mod download",
        add: null,
        buildEnv: {},
        buildCaches: ["/go/pkg/mod", "/root/.cache/go-build"],
        build,
        prune: null,
      },
      run: {
        kind: "server",
        image: "debian:12-slim",
        packages: [],
        env: {},
        ships: [
          // A slim image has no CA certificates; without them, every TLS call fails.
          ["/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/certs/ca-certificates.crt"],
          ["bin/app", "bin/app"],
          ...data.map((name): [string, string] => [name, name]),
        ],
        start,
      },
    },
  };
}

/** Returns the directory with `package main`: the root, or the likeliest one below `cmd`. */
async function programOf(view: Inspection, directory: string): Promise<string> {
  const sources = (await view.list(directory)).filter((entry) => /^\w+\.go$/.test(entry.name));
  for (const { name } of sources.slice(0, 20))
    if (/^package main\b/m.test((await view.text(posix.join(directory, name))) ?? "")) return ".";
  const commands = (await view.list(posix.join(directory, "cmd")))
    .filter((entry) => entry.kind === "directory" && /^\w[\w-]*$/.test(entry.name))
    .map((entry) => entry.name);
  const taken = ["server", "api", "web", "app"].find((name) => commands.includes(name)) ?? commands[0];
  if (taken === undefined) {
    view.warn("no package main lies in the root or below cmd: set build_command");
    return ".";
  }
  view.because(`cmd/${taken} is the program`);
  if (commands.length > 1) view.warn(`cmd holds ${commands.join(", ")}: ${taken} is built`);
  return `cmd/${taken}`;
}
