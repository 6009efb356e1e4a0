/**
 * Suspension, for every operation of the three documents. A write on an object of a suspended workspace gets 402, even
 * from a person who also has an active workspace. Reading and deleting stay possible.
 */
import { afterEach, describe, expect, test } from "vitest";
import { clearActorCache } from "#accounts/find-actor.ts";
import { refusesSuspended } from "#http/authenticate.ts";
import type { Route } from "#http/define-route.ts";
import { makeTeam, makeToken } from "../factories.ts";
import { refusedHandshake, send as sendCall } from "./calls.ts";
import { cases } from "./cases/all.ts";
import type { Call } from "./cases/case.ts";
import { openWorld, type World } from "./world.ts";

const world = await openWorld();
const { db } = world.app;
const { owner } = world;
const active = await makeTeam(db, { [owner.userId]: "owner" }, { plan: "team", sandbox_tier: "enterprise" });

const routes = Object.values(world.routes).flat();
const refused = routes.filter(refusesSuspended);
const allowed = routes.filter(
  (route) =>
    !refusesSuspended(route) &&
    route.scope !== "public" &&
    route.scope !== null &&
    (route.method !== "GET" || route.path.includes("{")),
);

/** Suspends every workspace that the owner reaches, except the given one. */
async function suspendAllBut(id: string | null): Promise<void> {
  const teams = db.selectFrom("team_members").select("workspace_id").where("user_id", "=", owner.userId);
  await db
    .updateTable("workspaces")
    .set({ suspended_at: new Date() })
    .where((or) => or.or([or("owner_user_id", "=", owner.userId), or("id", "in", teams)]))
    .$if(id !== null, (query) => query.where("id", "!=", id))
    .execute();
  clearActorCache(world.app);
}

afterEach(async () => {
  await db.updateTable("workspaces").set({ suspended_at: null }).execute();
  clearActorCache(world.app);
});

async function send(route: Route, call: Call, token: string) {
  const { status, json } = await sendCall(world, route, call, token);
  return { status, code: (json as { code?: string } | null)?.code };
}

const callOf = (route: Route, as: World = world) => cases[route.operationId]!.success(as);
const suspension = { status: 402, code: "account_suspended" };

describe.each(refused)("$method $path", (route) => {
  test("is refused when all workspaces of the caller are suspended", async () => {
    const call = await callOf(route);
    await suspendAllBut(null);
    expect(await send(route, call, owner.token)).toEqual(suspension);
  });

  test("is refused for a suspended workspace while another workspace of the caller is active", async () => {
    const call = await callOf(route);
    await suspendAllBut(active.id);
    expect(await send(route, call, owner.token)).toEqual(suspension);
  });
});

describe.each(allowed)("$method $path", (route) => {
  test("is allowed while the workspace is suspended", async () => {
    const call = await callOf(route);
    await suspendAllBut(null);
    const { status } = await send(route, call, owner.token);
    expect([status, status < 300 || status === 409]).toEqual([status, true]);
  });
});

test("apart from reads and deletes, a suspended workspace allows only the listed routes", () => {
  const writes = allowed.filter(({ method }) => method !== "GET" && method !== "DELETE");
  expect(writes.map(({ operationId }) => operationId).toSorted()).toEqual([
    "cancelAgentRun",
    "cancelDeployment",
    "declineInvitation",
    "disconnectAgentToolset",
    "markAllNotificationsRead",
    "markNotificationRead",
    "presignDownload",
  ]);
});

test("runs commands only in sandboxes of the workspace that is active: the team's or the personal one", async () => {
  const { plaintext } = await makeToken(db, owner.userId, { workspaceId: active.id });
  const exec = refused.find(({ operationId }) => operationId === "execCommand")!;
  const inTeam = await callOf(exec, { ...world, owner: { ...owner, token: plaintext } });
  const inPersonal = await callOf(exec);
  await suspendAllBut(active.id);
  expect((await send(exec, inTeam, owner.token)).status).toBe(200);
  await db.updateTable("workspaces").set({ suspended_at: null }).execute();
  await suspendAllBut(owner.workspaceId);
  expect((await send(exec, inPersonal, owner.token)).status).toBe(200);
  expect(await send(exec, inTeam, owner.token)).toEqual(suspension);
});

test("refuses a WebSocket to a terminal of a suspended workspace", async () => {
  const startPty = refused.find(({ operationId }) => operationId === "startPty")!;
  const { params } = await callOf(startPty);
  const { json } = await world.call("POST", `/v1/sandboxes/${params!["id"]}/pty`, {
    token: owner.token,
    body: {},
  });
  const address = await world.listen();
  await suspendAllBut(null);
  const url = `${address}/v1/sandboxes/${params!["id"]}/pty/${(json as { id: string }).id}`;
  expect(await refusedHandshake(url, owner.token)).toBe(402);
});
