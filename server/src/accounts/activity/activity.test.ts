/** Tests the audit log on a real database: listing, filters, retention. */
import { sql } from "kysely";
import { expect, test } from "vitest";
import { makePerson, makeTeam } from "../../../test/factories.ts";
import { silentLog, testDatabase } from "../../../test/harness.ts";
import type { Actor } from "../actor.ts";
import { AccessLog } from "./access-log.ts";
import { recordActivity, systemActor } from "./activity.ts";
import { listActivity } from "./list.ts";

const { db } = await testDatabase();
const app = { db, log: silentLog };
const page = { skip: 0, limit: 100 };

async function person(): Promise<Actor & { email: string; home: string }> {
  const { user, workspace } = await makePerson(db);
  return { ...actorOf(user.id, [workspace.id]), email: user.email, home: workspace.id };
}

function actorOf(userId: string, workspaces: readonly string[]): Actor {
  return {
    ...systemActor(""),
    kind: "api_token",
    id: "tok_ci",
    label: "ci",
    userId,
    workspaces: workspaces.map((id, index) => ({
      id,
      kind: index === 0 ? ("personal" as const) : ("team" as const),
      role: "owner" as const,
      plan: "team" as const,
      sandboxTier: "free" as const,
      suspended: false,
    })),
  };
}

const thing = (id: string) => ({ kind: "thing", id, label: null });

test("pages by cursor without gaps or repeats while entries are added", async () => {
  const owner = await person();
  const add = (from: number, to: number) =>
    db.transaction().execute(async (tx) => {
      for (let n = from; n < to; n++)
        await recordActivity(tx, owner, "thing.changed", thing(String(n)), owner.home);
    });
  await add(0, 10);
  const seen: (string | null)[] = [];
  let cursor: string | null | undefined;
  do {
    const result = await listActivity(app, owner, { ...page, limit: 3, cursor: cursor ?? undefined });
    seen.push(...result.items.map(({ target }) => target.id));
    cursor = result.next_cursor;
    await add(100 + seen.length, 101 + seen.length);
  } while (cursor !== null && seen.length < 20);
  // Entries of one transaction keep their order.
  expect(seen).toEqual(["9", "8", "7", "6", "5", "4", "3", "2", "1", "0"]);
  const times = ["2030-02-31 00:00:00+00", "0000-01-01 00:00:00+00", "2030-01-01 00:00:00+23"];
  const forged = [...times.map((at) => `${at} ${owner.userId}`), "2030-01-01 00:00:00+00 no"];
  for (const bad of ["", "x", ...forged.map((text) => Buffer.from(text).toString("base64url"))]) {
    await expect(listActivity(app, owner, { ...page, cursor: bad })).rejects.toMatchObject({
      code: "cursor_invalid",
    });
  }
});

test("finds entries by person, action, target and time", async () => {
  const owner = await person();
  const other = await person();
  const shared: Actor = {
    ...owner,
    workspaces: [...owner.workspaces, ...actorOf("", ["", other.home]).workspaces.slice(1)],
  };
  await recordActivity(db, owner, "thing.changed", thing("a"), owner.home);
  await recordActivity(db, other, "thing.removed", thing("b"), other.home);
  await recordActivity(db, systemActor("clock"), "other.changed", thing("a"), owner.home);
  const findActions = async (query: object) =>
    (await listActivity(app, shared, { ...page, ...query })).items.map(({ action }) => action).toSorted();
  expect(await findActions({})).toEqual(["other.changed", "thing.changed", "thing.removed"]);
  expect(await findActions({ person: other.email.toUpperCase() })).toEqual(["thing.removed"]);
  expect(await findActions({ person: owner.userId })).toEqual(["thing.changed"]);
  expect(await findActions({ action: "thing" })).toEqual(["thing.changed", "thing.removed"]);
  expect(await findActions({ action: "thing.removed" })).toEqual(["thing.removed"]);
  expect(await findActions({ target: "a" })).toEqual(["other.changed", "thing.changed"]);
  const soon = new Date(Date.now() + 3_600_000).toISOString();
  expect(await findActions({ from: soon })).toEqual([]);
  expect(await findActions({ to: soon, target: "b" })).toEqual(["thing.removed"]);
});

test("names the person behind a token until the account is deleted", async () => {
  const owner = await person();
  const leaver = await person();
  const shared: Actor = { ...owner, workspaces: [...owner.workspaces, ...leaver.workspaces] };
  await recordActivity(db, leaver, "thing.changed", thing("of a leaver"), owner.home);
  await recordActivity(db, systemActor("clock"), "thing.changed", thing("of the server"), owner.home);
  const users = async () =>
    (await listActivity(app, shared, page)).items.map(({ actor: by }) => [by.kind, by.user]);
  const user = { id: leaver.userId, name: expect.any(String), email: leaver.email };
  expect(await users()).toEqual([
    ["system", null],
    ["api_token", user],
  ]);
  await db.deleteFrom("users").where("id", "=", leaver.userId).execute();
  expect(await users()).toEqual([
    ["system", null],
    ["api_token", null],
  ]);
});

test("keeps the entries of a deleted team for the operator", async () => {
  const owner = await person();
  const team = await makeTeam(db, { [owner.userId]: "owner" });
  await recordActivity(db, owner, "thing.changed", thing("in a team"), team.id);
  await db.deleteFrom("workspaces").where("id", "=", team.id).execute();
  const query = { ...page, workspace: "all", target: "in a team" };
  await expect(listActivity(app, owner, query)).rejects.toMatchObject({ code: "workspace_not_found" });
  const operator: Actor = { ...owner, isOperator: true };
  expect((await listActivity(app, operator, query)).items).toMatchObject([
    { workspace: team.id, person: { email: owner.email } },
  ]);
  for (const narrower of [{ scopes: ["platform:read" as const] }, { workspaces: [] }]) {
    await expect(listActivity(app, { ...operator, ...narrower }, query)).rejects.toMatchObject({
      code: "workspace_not_found",
    });
  }
});

test("writes entries in batches, and records the number of dropped entries", async () => {
  const owner = await person();
  const log = new AccessLog(app);
  const note = (id: string, detail = {}) =>
    log.note({ actor: owner, action: "thing.read", target: thing(id), workspace: owner.home, detail });
  for (let n = 0; n < 10_002; n++) note("many");
  // PostgreSQL cannot store either text unchanged.
  note("odd", { path: "/a\0b\ud800" });
  await log.flush();
  note("odd", { path: "/a\0b\ud800" });
  await log.flush();
  const listAccess = (query: object) => listActivity(app, owner, { ...page, access: "only", ...query });
  expect((await listAccess({ target: "many" })).total).toBe(10_000);
  expect((await listAccess({ target: "odd" })).items).toMatchObject([
    { detail: { path: "/a\u{FFFD}b\u{FFFD}" } },
  ]);
  const dropped = await db
    .selectFrom("activity")
    .selectAll()
    .where("action", "=", "activity.dropped")
    .execute();
  expect(dropped).toMatchObject([{ detail: { entries: 3 } }]);
});

test("writes pending entries on close", async () => {
  const owner = await person();
  const log = new AccessLog(app);
  log.note({ actor: owner, action: "thing.read", target: thing("last"), workspace: owner.home });
  await log.close();
  expect((await listActivity(app, owner, { ...page, access: "only", target: "last" })).total).toBe(1);
});

test.each([
  [{ days: 30, accessDays: null }, ["new", "read"]],
  [{ days: 30, accessDays: 10 }, ["new"]],
  [{ days: null, accessDays: 10 }, ["new", "old"]],
  [{ days: 20, accessDays: 365 }, ["new"]],
  [{ days: null, accessDays: null }, ["new", "old", "read"]],
])("deletes the entries older than the retention %j, and no others", async (retention, kept) => {
  const owner = await person();
  const log = new AccessLog(app);
  for (const id of ["old", "new"]) await recordActivity(db, owner, "thing.changed", thing(id), owner.home);
  log.note({ actor: owner, action: "thing.read", target: thing("read"), workspace: owner.home });
  await log.flush();
  for (const [id, age] of [
    ["old", "31 days"],
    ["read", "25 days"],
  ])
    await sql`update activity set at = now() - ${age}::interval
      where target_id = ${id} and workspace_id = ${owner.home}`.execute(db);
  await log.prune(retention);
  const { items } = await listActivity(app, owner, { ...page, access: "include" });
  expect(items.map(({ target }) => String(target.id)).toSorted((a, b) => (a < b ? -1 : 1))).toEqual(kept);
});
