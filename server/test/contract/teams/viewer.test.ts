/**
 * The viewer of a team, for every operation of the three documents. A write on a resource of the team is refused with
 * 403 and changes nothing, and a read returns no secrets. The viewer can still write to the own workspace.
 */
import { afterEach, describe, expect, test } from "vitest";
import { clearActorCache } from "#accounts/find-actor.ts";
import { refusesViewers } from "#http/authenticate.ts";
import { makePerson, makeTeam, makeToken } from "../../factories.ts";
import { canary, expectNoSecret, plantCanary, refusedHandshake, send } from "../calls.ts";
import { cases } from "../cases/all.ts";
import type { Call } from "../cases/case.ts";
import { openWorld, type World } from "../world.ts";

const world = await openWorld();
const { db } = world.app;
const { owner, stranger: viewer } = world;
const bound = (await makeToken(db, viewer.userId, { workspaceId: owner.workspaceId })).plaintext;

const routes = Object.values(world.routes)
  .flat()
  .filter(({ scope }) => scope !== null && scope !== "public");
const routeOf = (operationId: string) => routes.find((route) => route.operationId === operationId)!;
/** Writes that a viewer may not make. An invitation belongs to the invited person. */
const writes = routes.filter((route) => refusesViewers(route) && !route.path.includes("/invitations/{"));
const onThings = writes.filter(({ path }) => path.includes("{"));
const creating = writes.filter(({ path }) => !path.includes("{"));
const reads = routes.filter(
  (route) => !refusesViewers(route) && route.allowsViewers !== true && route.needsSecrets !== true,
);
const secretReads = routes.filter((route) => !refusesViewers(route) && route.needsSecrets === true);

const refusal = { status: 403, json: { code: "insufficient_role", role_needed: "member" } };
const call = (token: string, method: string, path: string, body?: object) =>
  world.call(method, path, { token, body });

/** Makes the owner's personal workspace a team, and adds the viewer to it and to the owner's other teams. */
async function enter(): Promise<void> {
  const { userId, workspaceId } = owner;
  const team = { kind: "team" as const, owner_user_id: null };
  await db.updateTable("workspaces").set(team).where("id", "=", workspaceId).execute();
  const member = { workspace_id: workspaceId, user_id: userId, role: "owner" as const };
  await db.insertInto("team_members").values(member).execute();
  const teams = await db
    .selectFrom("team_members")
    .select("workspace_id")
    .where("user_id", "=", userId)
    .execute();
  const viewing = teams.map(({ workspace_id }) => ({
    workspace_id,
    user_id: viewer.userId,
    role: "viewer" as const,
  }));
  await db.insertInto("team_members").values(viewing).execute();
  clearActorCache(world.app);
}

async function leave(): Promise<void> {
  const { userId, workspaceId } = owner;
  const personal = { kind: "personal" as const, owner_user_id: userId };
  await db.deleteFrom("team_members").where("workspace_id", "=", workspaceId).execute();
  await db.deleteFrom("team_members").where("user_id", "=", viewer.userId).execute();
  await db.updateTable("workspaces").set(personal).where("id", "=", workspaceId).execute();
  clearActorCache(world.app);
}

afterEach(leave);

/** Returns the changes by the viewer in the activity log. */
const changes = () =>
  db
    .selectFrom("activity")
    .select("action")
    .where("person_id", "=", viewer.userId)
    .where("is_access", "=", false)
    .execute();

describe.each(onThings)("$method $path", (route) => {
  test("refuses a viewer of the owning team, and changes nothing", async () => {
    const before = await changes();
    const made = await cases[route.operationId]!.success(world);
    await enter();
    expect(await send(world, route, made, viewer.token)).toMatchObject(refusal);
    expect(await changes()).toEqual(before);
  });
});

describe.each(creating)("$method $path", (route) => {
  test("refuses a token that is bound to the team and belongs to a viewer", async () => {
    const made = await cases[route.operationId]!.success(world);
    await enter();
    expect(await send(world, route, made, bound)).toMatchObject(refusal);
  });
});

describe.each(reads)("$method $path", (route) => {
  test("responds to a viewer, and returns no secret", async () => {
    const made = await cases[route.operationId]!.success(world);
    await plantCanary(world, made);
    await enter();
    const reply = await send(world, route, made, viewer.token);
    expect([reply.status, reply.status < 300]).toEqual([reply.status, true]);
    expectNoSecret(reply);
  });
});

describe.each(secretReads)("$method $path", (route) => {
  test("refuses to return a secret to a viewer", async () => {
    const made = await cases[route.operationId]!.success(world);
    await enter();
    const { status, json } = await send(world, route, made, viewer.token);
    expect([status, json]).toMatchObject([403, { code: "secrets_hidden" }]);
  });
});

/** The viewer's own resources, created by the cases. */
const own: World = { ...world, owner: viewer };

test("lets a viewer of a team write to the viewer's own workspace and read that workspace's secrets", async () => {
  const exec = await cases["execCommand"]!.success(own);
  const variables = await call(viewer.token, "POST", "/api/v1/projects", {
    name: "viewers-own",
    env_vars: { CANARY: canary },
  });
  const { id } = variables.json as { id: string };
  await enter();
  expect((await send(world, routeOf("execCommand"), exec, viewer.token)).status).toBe(200);
  const read = await call(viewer.token, "GET", `/api/v1/projects/${id}/env-vars`);
  expect(read.json).toMatchObject({ CANARY: canary });
});

test("refuses a viewer's request whose body names resources of the team", async () => {
  const named = [
    ["createProject", "/api/v1/projects"],
    ["createFunction", "/api/v1/functions"],
    ["createGroup", "/api/v1/groups"],
    ["createApiToken", "/api/v1/api-tokens"],
  ] as const;
  const made = new Map<string, Call>();
  for (const [operationId] of named) made.set(operationId, await cases[operationId]!.success(world));
  const snapshot = await cases["deleteSnapshot"]!.success(world);
  await enter();
  for (const [operationId, path] of named) {
    const { body } = made.get(operationId)!;
    const into = { ...(body as object), workspace: owner.workspaceId };
    expect(await call(viewer.token, "POST", path, into)).toMatchObject(refusal);
  }
  const begun = await call(viewer.token, "POST", "/v1/sandboxes", { snapshot: snapshot.params!["id"] });
  expect([begun.status, begun.json]).toMatchObject([404, { code: "snapshot_not_found" }]);
});

test("refuses a viewer's WebSocket to a terminal of the team", async () => {
  const { params } = await cases["getPty"]!.success(world);
  const address = await world.listen();
  await enter();
  const url = `${address}/v1/sandboxes/${params!["id"]}/pty/${params!["pty"]}`;
  expect(await refusedHandshake(url, viewer.token)).toBe(403);
});

test("applies a change of role at once, even to a token that is bound to the team", async () => {
  const { user } = await makePerson(db);
  const team = await makeTeam(db, { [owner.userId]: "owner", [user.id]: "member" });
  clearActorCache(world.app);
  const { plaintext } = await makeToken(db, user.id, { workspaceId: team.id });
  const path = `/api/v1/teams/${team.id}/members/${user.id}`;
  const group = (name: string) => call(plaintext, "POST", "/api/v1/groups", { name });
  expect((await group("before")).status).toBe(201);
  expect(await call(owner.token, "PATCH", path, { role: "viewer" })).toMatchObject({
    status: 200,
    json: { role: "viewer" },
  });
  expect(await group("while viewing")).toMatchObject(refusal);
  expect((await call(plaintext, "GET", "/api/v1/groups")).json).toMatchObject([{ name: "before" }]);
  expect((await call(owner.token, "PATCH", path, { role: "member" })).status).toBe(200);
  expect((await group("after")).status).toBe(201);
});

test("lets a viewer accept an invitation and leave, and does not count the viewer as an owner", async () => {
  const team = await makeTeam(db, { [owner.userId]: "owner" });
  clearActorCache(world.app);
  const members = `/api/v1/teams/${team.id}/members`;
  const body = { email: viewer.email, role: "viewer" };
  const invited = await call(owner.token, "POST", members, body);
  expect(invited).toMatchObject({ status: 201, json: { role: "viewer" } });
  const accept = `/api/v1/invitations/${(invited.json as { id: string }).id}/accept`;
  expect(await call(viewer.token, "POST", accept)).toMatchObject({ status: 200, json: { role: "viewer" } });
  const demoted = await call(owner.token, "PATCH", `${members}/${owner.userId}`, { role: "viewer" });
  expect([demoted.status, demoted.json]).toMatchObject([409, { code: "last_owner" }]);
  expect((await call(viewer.token, "DELETE", `${members}/${owner.userId}`)).status).toBe(403);
  expect((await call(viewer.token, "POST", "/api/v1/notifications/read-all")).status).toBe(200);
  expect((await call(viewer.token, "DELETE", `${members}/${viewer.userId}`)).status).toBe(204);
  expect((await call(viewer.token, "GET", `/api/v1/teams/${team.id}`)).status).toBe(404);
});
