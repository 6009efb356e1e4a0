/**
 * The rules of oxlint, with the imports that `layers.ts` forbids. `oxlint.config.ts` exports them.
 *
 * oxlint takes the last matching override and does not merge them, so every file gets its complete set of patterns from
 * exactly one override. Regular expressions of oxlint have no look-ahead, so the patterns are gitignore-style groups:
 * `[#]room/**` is `#room/**` (a leading `#` would be a comment), `../**` + `/room/**` the same by a relative path.
 */
import { defineConfig, type DummyRuleMap, type OxlintOverride } from "oxlint";
import {
  childProcessDoors,
  folderPrivateFiles,
  packages,
  type Room,
  roomPrivateFiles,
  rooms,
} from "./layers.ts";

interface Pattern {
  group: string[];
  message: string;
}

const tests = ["**/*.test.ts", "**/testing/**", "**/test/**", "**/conformance.ts"];
const doorMessage = "Start child processes with exec.ts or run.ts: argv, deadline, bounded output.";

/** Returns the patterns `#room/file` and `../room/file` for a name like `room/file` or `**` + `/file`. */
function bothSpellings(name: string): string[] {
  return [`[#]${name}`, `../**/${name}`];
}

/** Divides names into files of a package and files of rooms. */
function partition(names: readonly string[]): [packaged: string[], ofRooms: string[]] {
  const isPackaged = (name: string) => name.startsWith("@");
  return [names.filter(isPackaged), names.filter((name) => !isPackaged(name))];
}

function roomPatterns(room: Room, seesHttp: boolean): Pattern[] {
  const known = new Set([room.name, ...room.mayKnow, ...(seesHttp ? ["http"] : [])]);
  const forbidden = rooms.map(({ name }) => name).filter((name) => !known.has(name));
  const [packaged, files] = partition(room.mayKnow.filter((name) => name.endsWith(".ts")));
  const patterns: Pattern[] = [
    {
      group: [
        ...forbidden.flatMap((name) => bothSpellings(`${name}/**`)),
        ...files.flatMap((name) => bothSpellings(name).map((spelled) => `!${spelled}`)),
      ],
      message: `${room.name} may know only: ${room.mayKnow.join(", ") || "nothing"}${seesHttp ? ", http" : ""} (cli/src/lint/layers.ts).`,
    },
  ];
  if (!known.has("runtime")) {
    patterns.push({
      group: ["@kontor/runtime/**", ...packaged.map((name) => `!${name}`)],
      message: "Only the rooms machines and builds may call the runtime.",
    });
  }
  return patterns;
}

function privatePatterns(room: Room): Pattern[] {
  const others = rooms.filter(({ name }) => name !== room.name);
  return [
    ...roomPrivateFiles.map((file) => ({
      group: others.flatMap(({ name }) => bothSpellings(`${name}/**/${file}`)),
      message: `${file} is private to its room: call a function of the room.`,
    })),
    ...folderPrivateFiles.map((file) => ({
      group: [`[#]*/**/${file}`, `../*/**/${file}`],
      message: `${file} is private to its folder; api.ts collects routes.`,
    })),
  ];
}

function restrict(patterns: Pattern[], childProcess: boolean): DummyRuleMap {
  const paths = childProcess ? [] : [{ name: "node:child_process", message: doorMessage }];
  return { "no-restricted-imports": ["error", { paths, patterns }] };
}

function roomOverrides(room: Room): OxlintOverride[] {
  const inRoom = (pattern: string): string => `server/src/${room.name}/${pattern}`;
  const wire = (room.httpFiles ?? []).map(inRoom);
  const doors = childProcessDoors.filter((file) => file.startsWith(inRoom("")));
  const inner = [...roomPatterns(room, room.name === "http"), ...privatePatterns(room)];
  const overrides: OxlintOverride[] = [
    {
      files: [inRoom("**/*.ts")],
      excludeFiles: [...tests, ...wire, ...doors],
      rules: restrict(inner, false),
    },
  ];
  if (wire.length > 0) {
    const outer = roomPatterns(room, true);
    const collector = inRoom("**/api.ts");
    overrides.push(
      {
        files: wire,
        excludeFiles: [...tests, collector],
        rules: restrict([...outer, ...privatePatterns(room)], false),
      },
      // an api.ts is the only file that collects the routes of its room
      { files: [collector], rules: restrict(outer, false) },
    );
  }
  if (doors.length > 0) overrides.push({ files: doors, rules: restrict(inner, true) });
  return overrides;
}

function packageOverrides(): OxlintOverride[] {
  return packages.flatMap((fence) => {
    const known = fence.mayKnow.flatMap((name) => [`!${name}`, `!${name}/**`]);
    const patterns: Pattern[] = [
      {
        // The patterns are one group, because a second group would allow again what the first group refuses.
        group: fence.nodeOnly
          ? ["**", "!node:*", "!node:*/**", "!./**", "!../**", ...known]
          : ["@kontor/**", ...known],
        message: `${fence.package} may know only ${fence.nodeOnly ? "Node and " : ""}${fence.mayKnow.join(", ")} (cli/src/lint/layers.ts).`,
      },
    ];
    const doors = childProcessDoors.filter((file) => file.startsWith(`${fence.package}/`));
    return [
      {
        files: [`${fence.package}/src/**/*.ts`],
        excludeFiles: [...tests, ...doors],
        rules: restrict(patterns, false),
      },
      { files: doors, rules: restrict(patterns, true) },
    ];
  });
}

export const oxlintRules = defineConfig({
  plugins: ["eslint", "typescript", "unicorn", "oxc", "import", "promise", "node", "vitest"],
  categories: { correctness: "error", suspicious: "off", perf: "off" },
  options: { typeAware: true },
  // The repositories in e2e/apps are test data.
  ignorePatterns: ["node_modules", "**/build/**", "openapi/**", "e2e/apps/**"],
  rules: {
    "import/no-cycle": "error",
    "typescript/no-floating-promises": "error",
    "typescript/no-misused-promises": [
      "error",
      { checksVoidReturn: { arguments: false, attributes: false } },
    ],
    "typescript/await-thenable": "error",
    "typescript/no-explicit-any": "error",
    "typescript/switch-exhaustiveness-check": ["error", { considerDefaultExhaustiveForUnions: true }],
    "typescript/only-throw-error": "error",
    "typescript/consistent-type-imports": "error",
    "unicorn/prefer-node-protocol": "error",
    "import/no-default-export": "error",
    // The second argument is the message of a failure.
    "vitest/valid-expect": ["error", { maxArgs: 2 }],
    // tests call helpers that make the assertions
    "vitest/expect-expect": "off",
    "vitest/no-conditional-expect": "off",
    eqeqeq: ["error", "always", { null: "ignore" }],
    "no-var": "error",
    "prefer-const": "error",
    "no-eval": "error",
  },
  overrides: [
    {
      files: ["**/vitest.config.ts", "oxlint.config.ts", "knip.config.ts"],
      rules: { "import/no-default-export": "off" },
    },
    {
      // only config.ts reads the configuration, so that it can refuse an unknown or invalid value by name
      files: ["server/src/**/*.ts"],
      excludeFiles: [...tests, "server/src/config.ts"],
      rules: { "node/no-process-env": "error" },
    },
    ...rooms.flatMap(roomOverrides),
    ...packageOverrides(),
  ],
});
