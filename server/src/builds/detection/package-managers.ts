/**
 * Package managers of Node as data: their lockfiles, their installation, and the command that installs exactly the
 * locked versions.
 */
import { posix } from "node:path";
import { type Fields, type Inspection, text } from "./inspection.ts";

interface PackageManager {
  /** Name in `packageManager`, and in texts for people. */
  name: "npm" | "pnpm" | "yarn" | "bun";
  lockfiles: readonly string[];
  install: { locked: string; unlocked: string };
  /** Command that installs without development dependencies; null if the manager has none. */
  production: string | null;
  /** Command that removes the development dependencies without running scripts; null if the manager has none. */
  prune: string | null;
  cache: string;
  /** Package of the manager itself, which npm installs; null if the image has the manager. */
  package: string | null;
  /** Version of the manager if the repository names none. */
  version: string;
}

const npm: PackageManager = {
  name: "npm",
  lockfiles: ["package-lock.json", "npm-shrinkwrap.json"],
  install: { locked: "npm ci", unlocked: "npm install" },
  production: "npm ci --omit=dev",
  prune: "npm prune --omit=dev --ignore-scripts",
  cache: "/root/.npm",
  package: null,
  version: "",
};

const pnpm: PackageManager = {
  name: "pnpm",
  lockfiles: ["pnpm-lock.yaml"],
  install: { locked: "pnpm install --frozen-lockfile", unlocked: "pnpm install --no-frozen-lockfile" },
  production: "pnpm install --frozen-lockfile --prod",
  // Without a terminal, pnpm asks for confirmation before it removes files, unless CI is set.
  prune: "CI=true pnpm prune --prod --ignore-scripts",
  cache: "/root/.local/share/pnpm/store",
  package: "pnpm",
  version: "10",
};

const yarnClassic: PackageManager = {
  name: "yarn",
  lockfiles: ["yarn.lock"],
  install: { locked: "yarn install --frozen-lockfile", unlocked: "yarn install" },
  production: "yarn install --frozen-lockfile --production",
  prune: "yarn install --frozen-lockfile --production --ignore-scripts",
  cache: "/usr/local/share/.cache/yarn",
  package: "yarn",
  version: "1",
};

const yarnBerry: PackageManager = {
  ...yarnClassic,
  install: { locked: "yarn install --immutable", unlocked: "yarn install --no-immutable" },
  production: null,
  // Before version 4, pruning needs a plugin of Yarn.
  prune: null,
  cache: "/root/.yarn/berry/cache",
  package: "@yarnpkg/cli-dist",
  version: "4",
};

const yarn4: PackageManager = { ...yarnBerry, prune: "yarn workspaces focus --production" };

const bun: PackageManager = {
  name: "bun",
  lockfiles: ["bun.lock", "bun.lockb"],
  install: { locked: "bun install --frozen-lockfile", unlocked: "bun install" },
  production: "bun install --frozen-lockfile --production",
  // Bun leaves unused packages in place, so the directory is deleted first.
  prune: "rm -rf node_modules && bun install --frozen-lockfile --production --ignore-scripts",
  cache: "/root/.bun/install/cache",
  package: "bun",
  version: "1",
};

/** Managers in order of precedence. A package-lock.json beside another lockfile is usually a left-over. */
const byLockfile = [pnpm, yarnClassic, bun, npm];

export const lockfiles = byLockfile.flatMap((manager) => manager.lockfiles);

export interface ManagerFound {
  manager: PackageManager;
  /** True if the manager's lockfile exists. */
  locked: boolean;
  /** Package and version of the manager for npm to install, such as `pnpm@9.1.0`; null if the image has the manager. */
  package: string | null;
}

/**
 * Returns the package manager and the directory with its lockfile. `manifest` is the app's package.json. Bun needs no
 * lockfile.
 */
export async function findManager(
  view: Inspection,
  directory: string,
  manifest: Fields,
  isForBun = false,
): Promise<ManagerFound> {
  const present = new Set((await view.list(directory)).map((entry) => entry.name));
  const locked = byLockfile.filter((each) => each.lockfiles.some((file) => present.has(file)));
  const [, name, version] =
    /^(npm|pnpm|yarn|bun)@(\d[\w.-]*)/.exec(text(manifest["packageManager"]) ?? "") ?? [];
  const named = byLockfile.find((each) => each.name === name);
  const taken = named ?? locked[0] ?? (isForBun ? bun : npm);

  const isLocked = locked.includes(taken);
  const lockfile = taken.lockfiles.find((file) => present.has(file)) ?? "";
  if (named) view.because(`package.json names ${name} ${version} as its package manager`);
  else if (isLocked) view.because(`${lockfile} belongs to ${taken.name}`);
  if (!isLocked)
    view.warn(
      `there is no lockfile of ${taken.name}: two builds of one commit may install different versions`,
    );
  const others = locked.filter((each) => each !== taken).flatMap((each) => each.lockfiles);
  const ignored = others.filter((file) => present.has(file));
  if (ignored.length > 0)
    view.warn(`${ignored.join(" and ")} ${ignored.length > 1 ? "are" : "is"} ignored: ${taken.name} is used`);

  const lock = isLocked ? ((await view.text(posix.join(directory, lockfile))) ?? "") : "";
  const isBerry =
    taken === yarnClassic &&
    (version ? !/^1\b/.test(version) : present.has(".yarnrc.yml") || /^__metadata:/m.test(lock));
  const berry = version && /^[4-9]\./.test(version) ? yarn4 : yarnBerry;
  const manager = isBerry ? berry : taken;
  const wanted = version ?? (taken === pnpm ? pnpmThatWrote(lock) : manager.version);
  return { manager, locked: isLocked, package: manager.package && `${manager.package}@${wanted}` };
}

/**
 * Returns the version of pnpm that wrote the lockfile. Each pnpm refuses or rewrites lockfiles of later and of much
 * earlier versions.
 */
function pnpmThatWrote(lock: string): string {
  const major = /^lockfileVersion:\s*['"]?(\d+)/m.exec(lock)?.[1];
  return major === "5" ? "7" : major === "6" ? "8" : pnpm.version;
}
