/**
 * Imports that are allowed. The rooms of the server form layers, imports go downwards, and this table is the whole
 * rule: `oxlint-rules.ts` makes `no-restricted-imports` of it, and `server/test/architecture.test.ts` plants an
 * offender for every row.
 *
 * Files at the top of `server/src/` are not in the table. Every room may import `app.ts`, `config.ts` and `schema.ts`.
 */

export interface Room {
  /** Folder below `server/src/`. */
  name: string;
  /**
   * Rooms and single files it may import besides itself; `runtime` stands for the package `@kontor/runtime`, of which
   * a single file may be named as well.
   */
  mayKnow: readonly string[];
  /** The files of the room that may know HTTP exists; none where absent. */
  httpFiles?: readonly string[];
}

/** A resource's wire, its list of routes and the streams they answer: the only places that see a request. */
const wireFiles = ["**/routes.ts", "**/*-routes.ts", "**/api.ts", "**/schema.ts"];

const machinery = ["lib", "db", "jobs"];
const domains = ["accounts", "machines", "builds"];

export const rooms: readonly Room[] = [
  { name: "lib", mayKnow: [] },
  { name: "db", mayKnow: ["lib"] },
  { name: "jobs", mayKnow: ["lib", "db"] },
  // an actor is what a request turns into; who made it, and how, is handed in by main
  {
    name: "http",
    mayKnow: ["lib", "db", "jobs", "accounts/actor.ts", "accounts/errors.ts", "accounts/roles.ts"],
  },
  { name: "ingress", mayKnow: ["lib"] },
  // the way out, as ingress is the way in: whose machine it is and what its owner allows is handed in by main
  { name: "egress", mayKnow: ["lib"] },
  { name: "accounts", mayKnow: machinery, httpFiles: wireFiles },
  { name: "machines", mayKnow: [...machinery, "runtime"] },
  // builds are queued by the account that pays for them
  { name: "builds", mayKnow: [...machinery, "machines", "runtime", "accounts/payers.ts"] },
  // git is a program of the host: it is run through the one door, and nothing else of the runtime is known
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

/** SQL is private to its room: other rooms call functions of the room. */
export const roomPrivateFiles = ["store.ts"];
/** Routes are private to their folder. Only an `api.ts` collects them. */
export const folderPrivateFiles = ["routes.ts"];

export interface PackageFence {
  /** Folder of the workspace. */
  package: string;
  /** Packages of ours it may import. */
  mayKnow: readonly string[];
  /** True where the package stands on Node alone. */
  nodeOnly?: boolean;
}

export const packages: readonly PackageFence[] = [
  { package: "runtime", mayKnow: ["@kontor/runtime"], nodeOnly: true },
  {
    package: "cli",
    // the client side speaks HTTP; it shares the configuration, the database launcher (`down`), the dump of the database
    // with the places of volumes (`backup`, `restore`), the state of an upgrade (`upgrade`), where the host gets its packages (set-up), the names of what
    // an installation has on its host (`uninstall`), and the replies of the model `echo` (`dev-world`)
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

/** Child processes are started through one door, with argv arrays, deadlines and bounded output. */
export const childProcessDoors: readonly string[] = [
  "runtime/src/exec.ts",
  // the shim outlives the server: it is started and let go, not run to its end
  "runtime/src/linux/start.ts",
  // a fake machine is a group of ordinary processes, for tests alone
  "runtime/src/fake/process.ts",
  "server/src/db/embedded/ensure-embedded.ts",
  "cli/src/lib/run.ts",
];
