/**
 * Tests the commands as an operator runs them: each in its own process, on a database that a server may use meanwhile.
 */
import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { findActor, clearActorCache } from "#accounts/find-actor.ts";
import { signIn } from "#accounts/sessions/sessions.ts";
import { makeToken } from "../test/factories.ts";
import { programEnv, silentLog, testDatabase } from "../test/harness.ts";
import { systemClock } from "./lib/clock.ts";

const { db, connection } = await testDatabase();
const app = { db, clock: systemClock, log: silentLog };
const run = promisify(execFile);

async function kontor(...words: string[]): Promise<{ code: number; stdout: string; stderr: string }> {
  if (!("socketDirectory" in connection)) throw new Error("the test database has a socket");
  const url = `postgres://${connection.user}@/${connection.database}?host=${encodeURIComponent(connection.socketDirectory)}`;
  const env = { ...programEnv(), DATABASE_URL: url, KONTOR_DATA_DIR: "/nonexistent/kontor" };
  const program = new URL("./operator.ts", import.meta.url).pathname;
  return run(process.execPath, [program, ...words], { env }).then(
    ({ stdout, stderr }) => ({ code: 0, stdout, stderr }),
    (error: { code: number; stdout: string; stderr: string }) => error,
  );
}

const json = async (...words: string[]): Promise<Record<string, string>> => {
  const { code, stdout, stderr } = await kontor(...words, "--json");
  if (code !== 0) throw new Error(stderr);
  return JSON.parse(stdout) as Record<string, string>;
};

test("creates an account whose password signs in, lists the account, and resets the password", async () => {
  const made = await json("user", "create", "Ann@example.test", "--name", "Ann", "--plan", "pro");
  const from = { email: "ann@example.test", ip: null, userAgent: null };
  const { actor } = await signIn(app, { ...from, password: made["password"]! });
  expect(actor.workspaces).toMatchObject([{ plan: "pro", sandboxTier: "free" }]);
  const again = await kontor("user", "create", "ann@example.test");
  expect([again.code, again.stderr]).toEqual([1, "An account for ann@example.test already exists.\n"]);
  const { plaintext } = await makeToken(db, made["id"]!);
  await json("user", "reset-password", "ann@example.test", "--keep-tokens");
  expect(await findActor(app, { kind: "token", secret: plaintext })).toBeDefined();
  const { password } = await json("user", "reset-password", "ann@example.test");
  clearActorCache(app);
  expect(await findActor(app, { kind: "token", secret: plaintext })).toBeUndefined();
  await expect(signIn(app, { ...from, password: made["password"]! })).rejects.toMatchObject({
    code: "sign_in_refused",
  });
  await signIn(app, { ...from, password: password! });
  expect((await kontor("user", "list")).stdout).toMatch(/ann@example\.test +Ann +false +pro +free/);
});

test("adds members beyond a team's plan, changes the plan, and suspends and unsuspends the team, all by name", async () => {
  await Promise.all(["bo", "cy", "di", "ed"].map((name) => json("user", "create", `${name}@example.test`)));
  const team = await json("team", "create", "Werft", "--owner", "bo@example.test", "--tier", "payg");
  for (const name of ["cy", "di", "ed"]) await json("team", "add-member", "Werft", `${name}@example.test`);
  await json("team", "remove-member", team["id"]!, "di@example.test");
  expect((await kontor("team", "remove-member", "Werft", "bo@example.test")).stderr).toContain(
    "at least one owner",
  );
  await json("plan", "set", "Werft", "--tier", "enterprise");
  await json("suspend", "Werft");
  expect((await kontor("team", "list")).stdout).toMatch(/Werft +team +enterprise +3 +true/);
  await json("unsuspend", "Werft");
  const user = await db
    .selectFrom("users")
    .select("id")
    .where("email", "=", "cy@example.test")
    .executeTakeFirstOrThrow();
  const { plaintext } = await makeToken(db, user.id);
  const cy = await findActor(app, { kind: "token", secret: plaintext });
  expect(cy?.workspaces[1]).toMatchObject({ sandboxTier: "enterprise", suspended: false, role: "member" });
});

test("prints the correct usage after a mistake", async () => {
  const mistakes = [
    [["user"], "kontor user create <email>"],
    [["user", "create"], "usage: kontor user create"],
    [["user", "create", "no-address"], "is not an e-mail address"],
    [["plan", "set", "bo@example.test", "--plan", "gold"], "--plan must be one of starter, pro, team"],
    [["plan", "set", "bo@example.test", "--paln", "pro"], "--paln"],
  ] as const;
  const ends = await Promise.all(mistakes.map(([words]) => kontor(...words)));
  for (const [index, { code, stderr }] of ends.entries())
    expect([code, stderr]).toEqual([2, expect.stringContaining(mistakes[index]![1])]);
  expect((await kontor("suspend", "nobody@example.test")).stderr).toBe(
    "An account for nobody@example.test does not exist.\n",
  );
});
