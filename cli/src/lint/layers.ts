/**
 * Allowed imports. The rooms of the server form layers, and imports go downwards. This table is the whole rule:
 * `oxlint-rules.ts` makes `no-restricted-imports` of it, and `server/test/architecture.test.ts` plants an offender for
 * every row.
 */

export interface Room {
  /** Name of the room's folder below `server/src/`. */
  name: string;
  /**
   * Rooms and single files that the room may import besides its own. `runtime` stands for the package
   * `@kontor/runtime`, and a single file of the package may be listed as well.
   */
  mayKnow: readonly string[];
  /** Files of the room that may import HTTP modules. Absent if the room has no such files. */
  httpFiles?: readonly string[];
}

/** Files with the schema, the routes and the streamed responses of a resource. No other file handles a request. */
const wireFiles = ["**/routes.ts", "**/*-routes.ts", "**/api.ts", "**/schema.ts"];

const machinery = ["lib", "db", "jobs"];
const domains = ["accounts", "machines", "builds"];

export const rooms: readonly Room[] = [
  { name: "lib", mayKnow: [] },
  { name: "db", mayKnow: ["lib"] },
  { name: "jobs", mayKnow: ["lib", "db"] },
  // `http` gets the function that makes an Actor of a request from main
  {
    name: "http",
    mayKnow: ["lib", "db", "jobs", "accounts/actor.ts", "accounts/errors.ts", "accounts/roles.ts"],
  },
  { name: "ingress", mayKnow: ["lib"] },
  // `egress` gets the owner of a machine and its allowed addresses from main
  { name: "egress", mayKnow: ["lib"] },
  { name: "accounts", mayKnow: machinery, httpFiles: wireFiles },
  { name: "machines", mayKnow: [...machinery, "runtime"] },
  // builds wait in a queue for each account that pays
  { name: "builds", mayKnow: [...machinery, "machines", "runtime", "accounts/payers.ts"] },
  // git is a program of the host, so only the runtime's `exec.ts` is allowed here
  { name: "platform", mayKnow: [...machinery, ...domains, "@kontor/runtime/exec.ts"], httpFiles: wireFiles },
  { name: "sandbox", mayKnow: [...machinery, ...domains], httpFiles: wireFiles },
  { name: "agent", mayKnow: [...machinery, ...domains, "sandbox"], httpFiles: wireFiles },
  // The start of the server: it imports every room, and no room imports it.
  {
    name: "compose",
    mayKnow: [
      ...machinery,
      ...domains,
      "http",
      "ingress",
      "egress",
      "platform",
      "sandbox",
      "agent",
      "runtime",
    ],
  },
];

/** Names of files with SQL, which are private to their room: other rooms call functions of the room. */
export const roomPrivateFiles = ["store.ts"];
/** Names of files with routes, which are private to their folder. Only an `api.ts` collects routes. */
export const folderPrivateFiles = ["routes.ts"];

export interface PackageFence {
  /** Folder of the package. */
  package: string;
  /** Packages of this repository that the package may import. */
  mayKnow: readonly string[];
  /** True if the package depends on Node alone. */
  nodeOnly?: boolean;
}

export const packages: readonly PackageFence[] = [
  { package: "runtime", mayKnow: ["@kontor/runtime"], nodeOnly: true },
  {
    package: "cli",
    // The command is a client of the API. From the server it imports the configuration, the launcher of the database
    // (`down`), the dump with the paths of volumes (`backup`, `restore`) and the state of an upgrade. The command also
    // imports the package sources of the host (set-up), the names of an installation's resources (`uninstall`) and the
    // model `echo` (`dev-world`).
    mayKnow: [
      "@kontor/server/agent/models/echo-reply.ts",
      "@kontor/server/config.ts",
      "@kontor/server/db/db.ts",
      "@kontor/server/db/dump.ts",
      "@kontor/server/db/embedded/ensure-embedded.ts",
      "@kontor/server/db/embedded/files.ts",
      "@kontor/server/db/load.ts",
      "@kontor/server/db/migrate.ts",
      "@kontor/server/db/upgrade.ts",
      "@kontor/server/lib/regions.ts",
      "@kontor/runtime/cgroup/cgroups.ts",
      "@kontor/runtime/network/addresses.ts",
      "@kontor/runtime/rootfs/sources.ts",
    ],
  },
];

/** Files that may start child processes: with argv arrays, deadlines and bounded output. */
export const childProcessDoors: readonly string[] = [
  "runtime/src/exec.ts",
  // the shim outlives the server, so the server starts it and does not wait for its end
  "runtime/src/linux/start.ts",
  // a fake machine is a group of ordinary processes, for tests only
  "runtime/src/fake/process.ts",
  "server/src/db/embedded/ensure-embedded.ts",
  "cli/src/lib/run.ts",
];
