import { expect, test } from "vitest";
import type { Actor } from "../actor.ts";
import { makePerson, makeTeam } from "../../../test/factories.ts";
import { testDatabase } from "../../../test/harness.ts";
import { listNotifications, markAllRead, markRead, notify } from "./notifications.ts";

const { db } = await testDatabase();
const app = { db };

/** Creates an actor that reaches these workspaces. */
function actorOf(userId: string, ...ids: string[]): Actor {
  const workspaces = ids.map((id, n) => ({
    id,
    kind: n === 0 ? ("personal" as const) : ("team" as const),
    role: "owner" as const,
    plan: "team" as const,
    sandboxTier: "free" as const,
    suspended: false,
  }));
  const who = { kind: "user" as const, id: userId, label: "x", role: null, userId };
  return { ...who, scopes: null, tokenId: null, workspaces, ip: null };
}

async function twoInATeam() {
  const [one, other] = [await makePerson(db), await makePerson(db)];
  const team = await makeTeam(db, { [one.user.id]: "owner", [other.user.id]: "member" });
  return {
    team: team.id,
    one: actorOf(one.user.id, one.workspace.id, team.id),
    other: actorOf(other.user.id, other.workspace.id, team.id),
  };
}

const tell = (workspaceId: string, title = "Deployment 1 of shop failed") =>
  notify(db, {
    workspaceId,
    kind: "deploy_failed",
    title,
    body: "The build ended with exit code 1.",
    target: { kind: "project", id: "p", label: "shop" },
  });

test("notifies every member of the workspace, and tracks reading for each", async () => {
  const { team, one, other } = await twoInATeam();
  await tell(team);
  const [told] = await listNotifications(app, one);
  expect(told).toMatchObject({ kind: "deploy_failed", title: "Deployment 1 of shop failed", read: false });
  expect(await markRead(app, one, told!.id)).toMatchObject({ id: told!.id, read: true });
  expect(await listNotifications(app, one)).toMatchObject([{ read: true }]);
  expect(await listNotifications(app, other)).toMatchObject([{ read: false }]);
  // A second call changes nothing.
  await markRead(app, one, told!.id);
  expect(await markAllRead(app, one)).toBe(0);
  expect(await markAllRead(app, other)).toBe(1);
  expect(await listNotifications(app, other)).toMatchObject([{ read: true }]);
});

test("hides a notification from other people, who cannot mark it either", async () => {
  const { team, one } = await twoInATeam();
  const stranger = (await twoInATeam()).one;
  await tell(team);
  const [told] = await listNotifications(app, one);
  expect(await listNotifications(app, stranger)).toEqual([]);
  await expect(markRead(app, stranger, told!.id)).rejects.toThrow(
    expect.objectContaining({ code: "notification_not_found", status: 404 }),
  );
  expect(await markAllRead(app, stranger)).toBe(0);
  expect(await listNotifications(app, one)).toMatchObject([{ read: false }]);
});

test("lists the newest 50, and keeps 200 for a workspace", async () => {
  const { team, one } = await twoInATeam();
  const elsewhere = await twoInATeam();
  await tell(elsewhere.team, "kept");
  for (let n = 1; n <= 203; n++) await tell(team, `number ${n}`);
  const listed = await listNotifications(app, one);
  expect(listed).toHaveLength(50);
  expect(listed[0]).toMatchObject({ title: "number 203" });
  const { count } = await db
    .selectFrom("notifications")
    .select(({ fn }) => fn.countAll<number>().as("count"))
    .where("workspace_id", "=", team)
    .executeTakeFirstOrThrow();
  expect(count).toBe(200);
  expect(await listNotifications(app, elsewhere.one)).toMatchObject([{ title: "kept" }]);
});

test("truncates long texts", async () => {
  const { team, one } = await twoInATeam();
  await tell(team, "x".repeat(5000));
  const [told] = await listNotifications(app, one);
  expect(told!.title).toHaveLength(200);
});
