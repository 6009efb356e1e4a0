/**
 * Runs the same tests on Debian's PostgreSQL 15, the oldest version for `DATABASE_URL`, so that newer SQL fails here.
 * PostgreSQL runs in its own directory, as Debian's account `postgres`, on a unix socket.
 */
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { chmodSync, chownSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import type { TestProject } from "vitest/node";
import { chooseAccount, ownAccountName } from "#db/embedded/files.ts";
import { hbaFile, identFile, role } from "#db/embedded/settings.ts";
import { makeTemplate, query } from "../template.ts";

const programs = "/usr/lib/postgresql/15/bin";

export async function setup(project: TestProject): Promise<() => Promise<void>> {
  const directory = mkdtempSync(join(tmpdir(), `kontor-test-postgres15-`));
  const data = join(directory, "data");
  const account = chooseAccount(data);
  const runAs = {
    ...(account ? { uid: account.uid, gid: account.gid } : {}),
    cwd: directory,
    env: { PATH: "/usr/bin:/bin", LC_ALL: "C", TZ: "UTC" },
  };
  let postgres: ChildProcess | undefined;
  const remove = async () => {
    if (postgres && postgres.exitCode === null && postgres.signalCode === null) {
      const ended = once(postgres, "exit");
      // "Immediate shutdown" of postgres(1): test data needs no checkpoint.
      postgres.kill("SIGQUIT");
      await ended;
    }
    rmSync(directory, { recursive: true, force: true });
  };
  try {
    chmodSync(directory, 0o711);
    for (const name of ["data", "socket"]) {
      mkdirSync(join(directory, name), { mode: 0o700 });
      if (account) chownSync(join(directory, name), account.uid, account.gid);
    }
    writeFileSync(join(directory, "hba"), hbaFile);
    writeFileSync(join(directory, "ident"), identFile([ownAccountName()]));
    const initdb = ["-D", data, "-U", role, "--encoding=UTF8", "--locale=C", "--auth=reject", "--no-sync"];
    await promisify(execFile)(join(programs, "initdb"), initdb, runAs);
    postgres = spawn(join(programs, "postgres"), ["-D", data, ...settings(directory)], {
      ...runAs,
      stdio: ["ignore", "ignore", "pipe"],
    });
    let said = "";
    postgres.stderr?.on("data", (text: Buffer) => (said = (said + text.toString()).slice(-2_000)));
    const connection = { socketDirectory: join(directory, "socket"), user: role, database: "postgres" };
    while (
      !(await query(connection, "select 1").then(
        () => true,
        () => false,
      ))
    ) {
      if (postgres.exitCode !== null) throw new Error(`PostgreSQL 15 ended: ${said}`);
      await sleep(50);
    }
    await makeTemplate(connection);
    project.provide("postgres", { socketDirectory: connection.socketDirectory, user: role });
    return remove;
  } catch (error) {
    await remove();
    throw error;
  }
}

function settings(directory: string): string[] {
  return Object.entries({
    listen_addresses: "",
    unix_socket_directories: join(directory, "socket"),
    hba_file: join(directory, "hba"),
    ident_file: join(directory, "ident"),
    max_connections: "300",
    fsync: "off",
    timezone: "UTC",
  }).flatMap(([name, value]) => ["-c", `${name}=${value}`]);
}
