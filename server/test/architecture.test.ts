/**
 * Plants forbidden imports in a copy of the tree's outline (the real lint configuration, invented files). Reads the
 * rules that oxlint reports for each import. The rooms stay separate only if the linter reports such imports.
 */
import { spawnSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterAll, expect, test } from "vitest";
import oxlintConfig from "../../oxlint.config.ts";
import { folderPrivateFiles, packages, roomPrivateFiles, rooms } from "../../cli/src/lint/layers.ts";

const root = path.join(import.meta.dirname, "../..");
const outline = mkdtempSync(path.join(tmpdir(), "kontor-fence-"));
afterAll(() => rmSync(outline, { recursive: true, force: true }));

/** A file to plant, and the rule that the linter must report for it; null for a file that the linter must accept. */
interface Offender {
  file: string;
  source: string;
  rule: string | null;
}

const fence = "eslint(no-restricted-imports)";
const imports = (specifier: string): string =>
  `import { planted } from "${specifier}";\nexport const use = planted;\n`;

const planted: Offender[] = [
  ...rooms.flatMap((room) =>
    rooms
      .filter((other) => other.name !== room.name)
      .flatMap((other): Offender[] => {
        const allowed = room.mayKnow.includes(other.name);
        const rule = allowed ? null : fence;
        return [
          {
            file: `server/src/${room.name}/knows-${other.name}.ts`,
            source: imports(`#${other.name}/thing.ts`),
            rule,
          },
          {
            file: `server/src/${room.name}/deep/knows-${other.name}.ts`,
            source: imports(`../../${other.name}/thing.ts`),
            rule,
          },
        ];
      }),
  ),
  ...rooms
    .filter((room) => room.httpFiles)
    .map((room): Offender => ({
      file: `server/src/${room.name}/things/routes.ts`,
      source: imports("#http/define-route.ts"),
      rule: null,
    })),
  ...rooms.flatMap((room) =>
    folderPrivateFiles.map((file): Offender => ({
      file: `server/src/${room.name}/things/takes-${file}`,
      source: imports(`../other/${file}`),
      rule: fence,
    })),
  ),
  ...rooms.flatMap((room) =>
    roomPrivateFiles.flatMap((file): Offender[] => [
      {
        file: `server/src/${room.name}/things/takes-own-${file}`,
        source: imports(`../other/${file}`),
        rule: null,
      },
      ...room.mayKnow
        .filter((name) => rooms.some((other) => other.name === name))
        .flatMap((name): Offender[] => [
          {
            file: `server/src/${room.name}/things/takes-${name}-${file}`,
            source: imports(`#${name}/other/${file}`),
            rule: fence,
          },
          {
            file: `server/src/${room.name}/deep/things/takes-${name}-${file}`,
            source: imports(`../../../${name}/${file}`),
            rule: fence,
          },
        ]),
    ]),
  ),
  ...rooms.map((room): Offender => ({
    file: `server/src/${room.name}/knows-runtime.ts`,
    source: imports("@kontor/runtime/driver.ts"),
    rule: room.mayKnow.includes("runtime") ? null : fence,
  })),
  { file: "server/src/platform/runs-git.ts", source: imports("@kontor/runtime/exec.ts"), rule: null },
  ...rooms.map((room): Offender => ({
    file: `server/src/${room.name}/starts-process.ts`,
    source: imports("node:child_process"),
    rule: fence,
  })),
  { file: "server/src/http/takes-actor.ts", source: imports("#accounts/actor.ts"), rule: null },
  { file: "server/src/db/takes-tables.ts", source: imports("#sandbox/sandboxes/tables.ts"), rule: fence },
  { file: "server/src/db/takes-schema.ts", source: imports("#schema.ts"), rule: null },
  { file: "server/src/sandbox/own-store.ts", source: imports("./store.ts"), rule: null },
  {
    file: "server/src/jobs/env.ts",
    source: "export const use = process.env;\n",
    rule: "node(no-process-env)",
  },
  ...packages.flatMap((one): Offender[] => [
    { file: `${one.package}/src/knows-server.ts`, source: imports("@kontor/server/app.ts"), rule: fence },
    { file: `${one.package}/src/starts-process.ts`, source: imports("node:child_process"), rule: fence },
    { file: `${one.package}/src/takes-package.ts`, source: imports("pg"), rule: one.nodeOnly ? fence : null },
    { file: `${one.package}/src/takes-node.ts`, source: imports("node:fs/promises"), rule: null },
    ...one.mayKnow.map((name, index): Offender => ({
      file: `${one.package}/src/allowed-${index}.ts`,
      source: imports(name.endsWith(".ts") ? name : `${name}/thing.ts`),
      rule: null,
    })),
  ]),
  {
    file: "server/src/lib/circle-a.ts",
    source: 'import { b } from "./circle-b.ts";\nexport const a = (): number => b();\n',
    rule: "import(no-cycle)",
  },
  {
    file: "server/src/lib/circle-b.ts",
    source: 'import { a } from "#lib/circle-a.ts";\nexport const b = (): number => a();\n',
    rule: "import(no-cycle)",
  },
];

/** Runs the linter. Returns the rules that each file broke. */
function lint(): Map<string, Set<string>> {
  for (const { file, source } of planted) {
    mkdirSync(path.join(outline, path.dirname(file)), { recursive: true });
    writeFileSync(path.join(outline, file), source);
  }
  cpSync(path.join(root, "server/package.json"), path.join(outline, "server/package.json"));
  // The layer rules need only syntax. Without type checks, the linter needs no tsconfig and no packages here.
  writeFileSync(path.join(outline, ".oxlintrc.json"), JSON.stringify({ ...oxlintConfig, options: {} }));
  const { stdout } = spawnSync(
    process.execPath,
    [path.join(root, "node_modules/oxlint/bin/oxlint"), "-c", ".oxlintrc.json", "--format", "json", "."],
    { cwd: outline, encoding: "utf8", maxBuffer: 64 << 20 },
  );
  const report = JSON.parse(stdout) as { diagnostics: { filename: string; code: string }[] };
  const broken = new Map<string, Set<string>>();
  for (const { filename, code } of report.diagnostics) {
    broken.set(filename, (broken.get(filename) ?? new Set()).add(code));
  }
  return broken;
}

test("reports every import that violates the table of layers, and no other import", () => {
  const broken = lint();
  const wrong = planted.filter(({ file, rule }) =>
    rule === null ? (broken.get(file)?.size ?? 0) > 0 : !broken.get(file)?.has(rule),
  );
  expect(
    wrong.map(({ file, rule }) => ({ file, expected: rule, reported: [...(broken.get(file) ?? [])] })),
  ).toEqual([]);
});
