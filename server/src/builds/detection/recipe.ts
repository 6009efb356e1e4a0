/**
 * Writes a plan as a Dockerfile. The install layer is cached until a manifest changes, and downloads are cached between
 * builds. The image contains only the files that run, and none of its processes runs as root.
 *
 * The builder adds two guarantees. Cache mounts are shared by path, and each workspace has its own store of cache
 * mounts. The context contains no `.git`.
 */
import { posix } from "node:path";
import { cmd, env, run } from "./dockerfile.ts";
import type { Analysis } from "./detection.ts";
import { plainPath } from "./inspection.ts";
import type { BuildStage, Overrides, Plan, ServerStage, SiteStage } from "./plan.ts";

/** Directory of the app in every image. */
const home = "/app";

/**
 * Id of the user that runs the app. A number, because our slim images have only root, and Docker's images name their
 * users differently.
 */
const user = "1000:1000";

const siteConfigFile = "/etc/nginx/site.conf";

/**
 * Base image of sites, with nginx and a shell only (templates/bases/static-site.json). The image has 18 MB, against 200
 * MB of debian:12-slim with nginx.
 */
export const siteBase = "kontor/static-site:1";

/** True if the command is that of a static site's recipe in this file. */
export function isSite(argv: readonly string[]): boolean {
  return argv.includes(siteConfigFile);
}

/**
 * Returns the Dockerfile. A repository's own Dockerfile is returned unchanged; the result is null if nothing was
 * detected. Throws RangeError for a path, port or command that a Dockerfile cannot contain.
 */
export function recipeOf(analysis: Analysis, overrides: Overrides = {}): string | null {
  if (analysis.dockerfile !== null) return analysis.dockerfile;
  if (analysis.plan === null) return null;
  const plan = withOverrides(analysis.plan, overrides);
  const port = overrides.port ?? analysis.port ?? 8080;
  if (!Number.isInteger(port) || port < 1 || port > 65_535)
    throw new RangeError(`${port} is not a port: use 1 to 65535`);
  const health = overrides.healthCheckPath ?? analysis.healthCheckPath;
  // Refuses quotes and `\`, and `$`, which a builder would replace with a variable's value.
  if (!/^\/[\w.~!&()*+,;=:@%/?-]*$/.test(health) || health.length > 1000)
    throw new RangeError(
      "health_check_path must begin with / and contain only characters of a URL's path, without quotes",
    );

  const by = analysis.packageManager === null ? "" : `, installed by ${analysis.packageManager}`;
  const at = posix.join(home, plan.directory);
  const lines = [
    `# ${analysis.name}${by}`,
    ...(plan.build ? buildStage(plan, plan.build, at) : []),
    ...(plan.run.kind === "server"
      ? serverStage(plan, plan.run, at, port)
      : siteStage(plan, plan.run, at, port)),
    // Port and health check are stored in the image, so that a rollback works without the project's settings.
    `EXPOSE ${port}`,
    `LABEL kontor.health-check-path="${health}"`,
    ...(plan.run.kind === "site" ? [`CMD ["nginx", "-e", "stderr", "-c", "${siteConfigFile}"]`] : []),
    ...(plan.run.kind === "server" && plan.run.start ? [cmd(plan.run.start)] : []),
  ];
  return `${lines.join("\n")}\n`;
}

function withOverrides(plan: Plan, overrides: Overrides): Plan {
  const { installCommand, buildCommand, startCommand, outputDirectory } = overrides;
  let { build, run: ran } = plan;
  if (build && (installCommand !== undefined || startCommand !== undefined || buildCommand !== undefined))
    build = {
      ...build,
      install: installCommand ?? build.install,
      // The owner's install command may read any file.
      manifests: installCommand === undefined ? build.manifests : null,
      build: buildCommand ?? build.build,
      // The owner's install or start command may need any package, so none is removed.
      prune: installCommand === undefined && startCommand === undefined ? build.prune : null,
    };
  if (startCommand !== undefined) {
    const image = build?.image ?? "debian:12-slim";
    const from = ran.kind === "server" ? ran : { packages: [], env: build?.env ?? {} };
    const ships = ran.kind === "server" ? ran.ships.filter(([path]) => path.startsWith("/")) : [];
    ran = {
      kind: "server",
      image: ran.kind === "server" ? ran.image : image,
      packages: from.packages,
      env: from.env,
      ships: ships.length === 0 ? [] : [...ships, [".", "."]],
      start: startCommand,
    };
  } else if (outputDirectory !== undefined) {
    const directory = plainPath(outputDirectory);
    if (directory === undefined)
      throw new RangeError(
        "output_directory must be inside the app, and consist of letters, digits and . _ - @ + /",
      );
    ran =
      ran.kind === "site" ? { ...ran, directory } : { kind: "site", directory, fallback: null, hashed: null };
    if (build) build = { ...build, prune: null };
  }
  return { ...plan, ...(build && { build }), run: ran };
}

function buildStage(plan: Plan, stage: BuildStage, at: string): string[] {
  const { manifests, install, build } = stage;
  const files = manifests?.filter((name) => !name.endsWith("/")) ?? [];
  const directories = manifests?.filter((name) => name.endsWith("/")) ?? [];
  const installed = [
    ...(install === null ? [] : [run(install, stage.caches)]),
    ...(stage.add === null ? [] : [run(stage.add, stage.caches)]),
  ];
  const shipsModules = plan.run.kind === "server" && plan.run.ships.some(([from]) => from === "node_modules");
  return [
    `FROM ${stage.image} AS build`,
    ...env(stage.env),
    ...debian(stage.packages),
    ...stage.setUp.map((line) => run(line)),
    ...managerFor(plan, [install, stage.add, build, stage.prune]),
    `WORKDIR ${home}`,
    ...(manifests === null
      ? ["COPY . ./", ...installed]
      : [
          `COPY ${files.join(" ")} ./`,
          ...directories.map((name) => `COPY ${name} ./${name}`),
          ...installed,
          "COPY . ./",
        ]),
    ...(at === home ? [] : [`WORKDIR ${at}`]),
    ...env(stage.buildEnv),
    ...(build === null
      ? []
      : [
          run(
            build,
            stage.buildCaches.map((path) => posix.resolve(at, path)),
          ),
        ]),
    ...(plan.run.kind === "site" ? [run(siteCheck(plan.run.directory))] : []),
    ...(stage.prune === null ? [] : [run(stage.prune, stage.caches)]),
    // A package manager removes node_modules if it keeps no package.
    ...(shipsModules ? [run("mkdir -p node_modules")] : []),
    "",
  ];
}

/**
 * Returns a line that fails if the output directory is missing, and lists the existing directories. The builder reports
 * the line after `kontor:`.
 */
function siteCheck(directory: string): string {
  const quoted = `'${directory.replaceAll("'", `'\\''`)}'`;
  const found =
    "find . -maxdepth 4 -name index.html -not -path '*/node_modules/*' | head -n 5 | tr '\\n' ' '";
  const there = "ls -p | grep -v '^node_modules/$' | head -n 40 | tr '\\n' ' '";
  return `test -d ${quoted} || { echo "kontor: The build wrote no directory "${quoted}". Set output_directory to one that exists. index.html is in: $(${found}); existing: $(${there})"; exit 1; }`;
}

function serverStage(plan: Plan, stage: ServerStage, at: string, port: number): string[] {
  const ships = stage.ships.length === 0 ? [[home, home] as const] : stage.ships;
  return [
    `FROM ${stage.image}`,
    ...env({ ...stage.env, HOME: "/tmp", PORT: port }),
    ...debian(stage.packages),
    ...managerFor(plan, [stage.start]),
    `WORKDIR ${at}`,
    ...ships.map(([from, to]) => {
      const target = posix.resolve(at, to);
      // The app may write to its own directory, but not to its runtime.
      const owner = target === home || target.startsWith(`${home}/`) ? ` --chown=${user}` : "";
      return plan.build
        ? `COPY --from=build${owner} ${posix.resolve(at, from)} ${target}`
        : `COPY${owner} . ${target}`;
    }),
    `USER ${user}`,
  ];
}

/** Returns the line that installs the package manager, if any of the commands uses it. */
function managerFor({ manager }: Plan, commands: readonly (string | null)[]): string[] {
  if (manager === null) return [];
  const named = new RegExp(`(?<![\\w./-])${manager.name}(?![\\w./-])`);
  return commands.some((command) => command !== null && named.test(command)) ? [run(manager.setUp)] : [];
}

function siteStage(plan: Plan, stage: SiteStage, at: string, port: number): string[] {
  const from = plan.build ? `--from=build ${posix.join(at, stage.directory)}` : stage.directory;
  return [
    `FROM ${siteBase}`,
    `RUN printf '%s\\n' \\\n${siteConfig(stage, port)
      .map((line) => `    '${line}' \\\n`)
      .join("")}    > ${siteConfigFile}`,
    `COPY ${from} /srv/`,
    `USER ${user}`,
  ];
}

/** Extensions of asset files, which are never pages of an app. */
const filesOfApps = "css|js|mjs|map|wasm|png|jpe?g|gif|svg|webp|avif|ico|woff2?|ttf";

/**
 * Returns the configuration of nginx(8), without root and behind a proxy that terminates TLS. There is no access log,
 * because the ingress logs requests.
 */
function siteConfig(stage: SiteStage, port: number): string[] {
  const temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
  const types = ["css", "javascript", "plain", "xml"].map((type) => `text/${type}`);
  const applications = ["javascript", "json", "manifest+json", "wasm", "xml"].map(
    (type) => `application/${type}`,
  );
  return [
    "daemon off;",
    "pid /tmp/nginx.pid;",
    "events {}",
    "http {",
    "  include /etc/nginx/mime.types;",
    "  default_type application/octet-stream;",
    "  charset utf-8;",
    "  access_log off;",
    "  server_tokens off;",
    "  sendfile on;",
    ...temporary.map((name) => `  ${name}_temp_path /tmp/${name};`),
    "  gzip on;",
    "  gzip_vary on;",
    "  gzip_proxied any;",
    "  gzip_min_length 1024;",
    `  gzip_types ${[...types, ...applications, "image/svg+xml"].join(" ")};`,
    "  server {",
    `    listen ${port};`,
    "    root /srv;",
    "    absolute_redirect off;",
    "    error_page 403 404 /404.html;",
    "    location = /404.html { }",
    // Browsers revalidate a page on each request, mostly with a 304 response. So a deployment is visible at once.
    "    add_header Cache-Control no-cache;",
    "    location ~ /[.](?!well-known/) { return 404; }",
    ...(stage.hashed === null
      ? []
      : [
          `    location ^~ ${stage.hashed} {`,
          "      try_files $uri =404;",
          '      add_header Cache-Control "public, max-age=31536000, immutable";',
          "    }",
        ]),
    ...(stage.fallback === null
      ? ["    location / { try_files $uri $uri.html $uri/ =404; }"]
      : [
          // A missing script of an earlier deployment returns 404, not the fallback page.
          `    location ~* [.](?:${filesOfApps})$ { try_files $uri =404; }`,
          `    location / { try_files $uri $uri.html $uri/index.html /${stage.fallback}; }`,
        ]),
    "  }",
    "}",
  ];
}

function debian(packages: readonly string[]): string[] {
  if (packages.length === 0) return [];
  const names = [...new Set(packages)].toSorted().join(" ");
  // Directories of apt that are mounted during the build, because the base image may not clean up after apt.
  const kept = ["/var/cache/apt", "/var/lib/apt/lists"].map(
    (target) => `--mount=type=cache,target=${target},sharing=locked`,
  );
  return [
    `RUN ${[...kept, "apt-get update", `&& apt-get install --yes --no-install-recommends ${names}`].join(" \\\n    ")}`,
  ];
}
