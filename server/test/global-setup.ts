/**
 * Starts a PostgreSQL for a whole run of tests, in its own directory, with a migrated template database that
 * `testDatabase()` clones. The next run removes the leftovers of a killed run.
 */
import { chmodSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestProject } from "vitest/node";
import { ensureEmbedded, stopEmbedded } from "#db/embedded/ensure-embedded.ts";
import { exists } from "#db/embedded/postmaster.ts";
import { makeTemplate } from "./template.ts";

declare module "vitest" {
  interface ProvidedContext {
    postgres: { socketDirectory: string; user: string };
  }
}

const prefix = "kontor-test-postgres-";

export async function setup(project: TestProject): Promise<() => Promise<void>> {
  await removeLeftovers();
  const directory = mkdtempSync(join(tmpdir(), `${prefix}${process.pid}-`));
  const remove = async () => {
    await stopEmbedded(directory);
    rmSync(directory, { recursive: true, force: true });
  };
  try {
    // mkdtemp creates a directory of mode 0700, which PostgreSQL's account cannot enter.
    chmodSync(directory, 0o711);
    // Test data need not survive a power cut, and a clone is a copy of files.
    const { connection } = await ensureEmbedded(directory, {
      settings: { fsync: "off", full_page_writes: "off", synchronous_commit: "off", max_connections: "300" },
    });
    if (!("socketDirectory" in connection)) throw new Error("the embedded PostgreSQL has a socket");
    await makeTemplate(connection);
    project.provide("postgres", { socketDirectory: connection.socketDirectory, user: connection.user });
    return remove;
  } catch (error) {
    await remove();
    throw error;
  }
}

/** Removes the leftovers of killed runs. The name of a leftover contains the pid of its run. */
async function removeLeftovers(): Promise<void> {
  for (const name of readdirSync(tmpdir()).filter((entry) => entry.startsWith(prefix))) {
    if (exists(Number.parseInt(name.slice(prefix.length), 10))) continue;
    await stopEmbedded(join(tmpdir(), name));
    rmSync(join(tmpdir(), name), { recursive: true, force: true });
  }
}
