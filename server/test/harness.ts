/**
 * Common parts of server tests: a real, migrated database for each file, a clock that the test moves, and a log that is
 * discarded. Everything is removed after the file, also after a failed test.
 */
import { randomBytes } from "node:crypto";
import { pino, type Logger } from "pino";
import { afterAll, inject } from "vitest";
import { type ConfigKey, type Config, loadConfig } from "#config.ts";
import { type Connection, type OpenDatabase, openDatabase } from "#db/db.ts";
import type { Database } from "#schema.ts";
import type { Clock } from "#lib/clock.ts";
import { SecretBox } from "#lib/secret-box.ts";
import { query, templateDatabase } from "./template.ts";

export interface TestDatabase extends OpenDatabase<Database> {
  connection: Connection;
}

/**
 * Opens a migrated database for this file alone; `empty` creates a database without tables. Call this at the top of a
 * file.
 */
export async function testDatabase(options: { empty?: boolean } = {}): Promise<TestDatabase> {
  const { socketDirectory, user } = inject("postgres");
  const name = `test_${randomBytes(8).toString("hex")}`;
  const administration = { socketDirectory, user, database: "postgres" };
  afterAll(() => query(administration, `drop database if exists ${name} with (force)`));
  const template = options.empty ? "template0" : templateDatabase;
  // By default each page of the copy also goes through the write-ahead log, which takes seven times as long.
  await query(administration, `create database ${name} template ${template} strategy file_copy`);
  const connection = { socketDirectory, user, database: name };
  const opened = openDatabase<Database>(connection, { maxConnections: 10, onError: () => {} });
  // This hook is registered before the hook that drops the database, because hooks run in reverse order.
  afterAll(() => opened.close());
  return { ...opened, connection };
}

/** A clock that only the test moves. */
export interface TestClock extends Clock {
  advance(milliseconds: number): void;
  set(at: Date): void;
}

export function testClock(start = new Date("2030-01-01T00:00:00Z")): TestClock {
  let now = start.getTime();
  return {
    now: () => new Date(now),
    advance: (milliseconds) => {
      now += milliseconds;
    },
    set: (at) => {
      now = at.getTime();
    },
  };
}

/**
 * Returns the default configuration with the fake runtime and the test's overrides (as text, as in the environment).
 */
export function testConfig(overrides: Partial<Record<ConfigKey, string>> = {}): Config {
  return loadConfig({
    env: {},
    dataDir: "/proc/kontor-test",
    overrides: { runtime: "fake", allowFakeRuntime: "on", logLevel: "silent", ...overrides },
  });
}

/**
 * Returns the environment of a server program in a test. It has no variable of the tester's shell, only the compile
 * cache that `./kontor` gives the server. Without that cache, half of a start is compilation.
 */
export function programEnv(): Record<string, string> {
  const { PATH = "", NODE_COMPILE_CACHE } = process.env;
  return { PATH, ...(NODE_COMPILE_CACHE === undefined ? {} : { NODE_COMPILE_CACHE }) };
}

export const silentLog: Logger = pino({ level: "silent" });

export function testSecrets(): SecretBox {
  return new SecretBox(randomBytes(32));
}
