/**
 * Debian's PostgreSQL 15 on this host, in a directory of its own, behind a fake machine's guest. Programs, pipes and
 * data are real; only the machine is fake.
 */
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { chmodSync, chownSync, mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { userInfo, tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import { afterAll } from "vitest";
import { FakeGuest } from "@kontor/runtime/fake/guest.ts";
import { chooseAccount } from "#db/embedded/files.ts";
import type { Guest } from "#machines/host/guest.ts";
import { psql } from "../engines/pg-session.ts";
import { textOf } from "../engines/streams.ts";

const programs = "/usr/lib/postgresql/15/bin";
const role = "postgres";

export interface LocalPostgres {
  guest: Guest;
  sql: (database: string, statements: string) => Promise<string>;
}

export async function localPostgres(): Promise<LocalPostgres> {
  const directory = mkdtempSync(join(tmpdir(), "kontor-backup-"));
  const data = join(directory, "data");
  // PostgreSQL refuses to run as root, so another account runs it.
  const account = chooseAccount(data);
  chmodSync(directory, 0o711);
  for (const name of [data, join(directory, "socket")]) {
    mkdirSync(name, { mode: 0o700 });
    if (account) chownSync(name, account.uid, account.gid);
  }
  const as = {
    ...(account ? { uid: account.uid, gid: account.gid } : {}),
    cwd: directory,
    env: { PATH: "/usr/bin:/bin", LC_ALL: "C", TZ: "UTC" },
  };
  await promisify(execFile)(
    join(programs, "initdb"),
    ["-D", data, "-U", role, "--encoding=UTF8", "--locale=C.UTF-8", "--auth=trust", "--no-sync"],
    as,
  );
  const settings = [`unix_socket_directories=${join(directory, "socket")}`, "listen_addresses=", "fsync=off"];
  const server = spawn(
    join(programs, "postgres"),
    ["-D", data, ...settings.flatMap((setting) => ["-c", setting])],
    { ...as, stdio: "ignore" },
  );
  afterAll(async () => {
    const ended = once(server, "exit");
    server.kill("SIGQUIT");
    await ended;
    rmSync(directory, { recursive: true, force: true });
  });
  const fake = new FakeGuest(directory, new Map(), async () => {});
  fake.env = { PGHOST: join(directory, "socket"), PGUSER: role };
  const name = account ? String(account.uid) : userInfo().username;
  // The guest runs every program as the account that runs PostgreSQL.
  const guest = Object.assign(Object.create(fake) as FakeGuest, {
    spawn: (spec: Parameters<Guest["spawn"]>[0]) => fake.spawn({ ...spec, user: name }),
  });
  const signal = AbortSignal.timeout(60_000);
  const sql: LocalPostgres["sql"] = (database, statements) =>
    textOf(guest, { argv: [...psql(database), "-f", "-"], user: role, stdin: statements }, signal);
  for (;;) {
    const isUp = await sql("postgres", "select 1;").then(
      () => true,
      () => false,
    );
    if (isUp) break;
    if (server.exitCode !== null) throw new Error("PostgreSQL 15 did not start");
    await sleep(100);
  }
  await sql("postgres", "create role kontor login;");
  return { guest, sql };
}
