/** Tests members, roles and invitations through the real HTTP layer, on a real database. */
import { afterAll, expect, test } from "vitest";
import { createHttpServer } from "#http/server.ts";
import { makePerson, makeTeam, makeToken } from "../../../test/factories.ts";
import { silentLog, testClock, testConfig, testDatabase } from "../../../test/harness.ts";
import type { App } from "../../app.ts";
import { systemActor } from "../activity/activity.ts";
import { findActor } from "../find-actor.ts";
import { notificationRoutes } from "../notifications/routes.ts";
import { createUser } from "../users/users.ts";
import { teamRoutes } from "./routes.ts";

// oxlint-disable-next-line typescript/no-explicit-any -- these tests check the shape of responses
type Json = any;

const { db } = await testDatabase();
const clock = testClock();
// The tested functions use only these parts of App.
const app = {
  config: testConfig({ rateLimits: "off" }),
  db,
  clock,
  log: silentLog,
} as unknown as App;
const server = await createHttpServer(
  app,
  { platform: [...teamRoutes(app, []), ...notificationRoutes(app)], sandbox: [], agent: [] },
  { findActor: (credential) => findActor(app, credential) },
);
afterAll(() => server.close());

async function call(token: string, method: string, path: string, body?: object) {
  const response = await server.fastify.inject({
    method: method as "GET",
    url: `/api/v1${path}`,
    headers: { authorization: `Bearer ${token}` },
    ...(body === undefined ? {} : { payload: body }),
  });
  const json = (response.payload === "" ? {} : response.json()) as Json;
  return { status: response.statusCode, code: json.code as string | undefined, json };
}

/** Creates a person with a full-access token. */
async function person(email?: string) {
  const { user } = await makePerson(db, email === undefined ? {} : { email });
  return { ...user, token: (await makeToken(db, user.id)).plaintext };
}

/** Creates a team, its owner, and a function that invites as the owner. */
async function teamOf(plan: "team" | "starter" = "team") {
  const owner = await person();
  const { id } = await makeTeam(db, { [owner.id]: "owner" }, { plan, name: "Nord" });
  const path = `/teams/${id}`;
  const invite = (email: string, role = "member") =>
    call(owner.token, "POST", `${path}/members`, { email, role });
  return { id, owner, path, invite };
}

const shapeOf = ({ json }: { json: Json }) => Object.keys(json);

test("refuses changes of members by a scoped, a bound and an agent's token, and changes nothing", async () => {
  const owner = await makePerson(db);
  const member = await makePerson(db);
  const guest = await makePerson(db);
  const team = await makeTeam(db, { [owner.user.id]: "owner", [member.user.id]: "member" });
  const scoped = await makeToken(db, owner.user.id, { scopes: ["platform:write"] });
  const bound = await makeToken(db, owner.user.id, { workspaceId: team.id });
  const agent = await makeToken(db, owner.user.id, { workspaceId: team.id });
  await db
    .updateTable("api_tokens")
    .set({ class: "agent", worker_id: "33333333-3333-4333-8333-333333333333" })
    .where("id", "=", agent.row.id)
    .execute();
  const path = `/teams/${team.id}`;
  for (const [token, code] of [
    [scoped, "full_access_required"],
    [bound, "full_access_required"],
    [agent, "agent_token_refused"],
  ] as const) {
    for (const [method, at, body] of [
      ["POST", "/members", { email: guest.user.email, role: "owner" }],
      ["PATCH", `/members/${member.user.id}`, { role: "owner" }],
      ["DELETE", `/members/${member.user.id}`],
      ["DELETE", ""],
    ] as const) {
      expect(await call(token.plaintext, method, path + at, body), `${method} ${at}`).toEqual({
        status: 403,
        code,
        json: expect.anything(),
      });
    }
    expect((await call(token.plaintext, "GET", path)).status).toBe(200);
  }
  const members = await db
    .selectFrom("team_members")
    .select(["user_id", "role"])
    .where("workspace_id", "=", team.id)
    .orderBy("role")
    .execute();
  expect(members).toEqual([
    { user_id: member.user.id, role: "member" },
    { user_id: owner.user.id, role: "owner" },
  ]);
  const full = await makeToken(db, owner.user.id);
  expect(
    (await call(full.plaintext, "PATCH", `${path}/members/${member.user.id}`, { role: "admin" })).status,
  ).toBe(200);
});

test("returns the same invitation for an address with an account and without", async () => {
  const { invite, path, owner } = await teamOf();
  const known = await person();
  const replies = [await invite(known.email), await invite(`nobody-${known.email}`)];
  expect(replies.map(({ status }) => status)).toEqual([201, 201]);
  expect(shapeOf(replies[0]!)).toEqual(shapeOf(replies[1]!));
  const { id: _id, email: _email, ...first } = replies[0]!.json;
  const { id: _other, email: _address, ...second } = replies[1]!.json;
  expect(first).toEqual(second);
  expect((await invite(known.email.toUpperCase())).code).toBe("already_invited");
  expect((await invite(`nobody-${known.email}`)).code).toBe("already_invited");
  const listed = await call(owner.token, "GET", `${path}/invitations`);
  const listedEmails = listed.json.map(({ email }: Json) => email);
  expect(new Set(listedEmails)).toEqual(new Set([`nobody-${known.email}`, known.email]));
});

test("adds a person to a team only when they accept, and notifies them until then", async () => {
  const { id, invite, owner, path } = await teamOf();
  const guest = await person();
  const { json: invitation } = await invite(guest.email, "admin");
  expect(invitation).toMatchObject({
    team_id: id,
    team_name: "Nord",
    role: "admin",
    invited_by: owner.email,
  });
  expect((await call(guest.token, "GET", path)).code).toBe("team_not_found");
  const [news] = (await call(guest.token, "GET", "/notifications")).json;
  expect(news).toMatchObject({ kind: "team_invitation", target: { id: invitation.id } });
  expect((await call(guest.token, "GET", "/invitations")).json).toEqual([invitation]);
  const accept = `/invitations/${invitation.id}/accept`;
  const stranger = await person();
  expect((await call(stranger.token, "POST", accept)).code).toBe("invitation_not_found");
  expect((await call(owner.token, "POST", accept)).code).toBe("invitation_not_found");
  const both = await Promise.all([1, 2].map(() => call(guest.token, "POST", accept)));
  expect(both.map(({ status }) => status).toSorted((a, b) => a - b)).toEqual([200, 404]);
  expect((await call(guest.token, "GET", path)).json.members).toMatchObject([
    { email: owner.email, role: "owner" },
    { email: guest.email, role: "admin" },
  ]);
  expect((await call(guest.token, "GET", "/notifications")).json).toEqual([]);
  expect((await invite(guest.email)).code).toBe("already_member");
});

test("ends an invitation when it is declined or revoked", async () => {
  const { invite, owner, path } = await teamOf();
  const guest = await person();
  const first = (await invite(guest.email)).json;
  expect((await call(guest.token, "POST", `/invitations/${first.id}/decline`)).status).toBe(204);
  expect((await call(owner.token, "GET", `${path}/invitations`)).json).toEqual([]);
  const second = (await invite(guest.email)).json;
  expect((await call(guest.token, "DELETE", `${path}/invitations/${second.id}`)).code).toBe("team_not_found");
  expect((await call(owner.token, "DELETE", `${path}/invitations/${second.id}`)).status).toBe(204);
  expect((await call(guest.token, "GET", "/invitations")).json).toEqual([]);
  expect((await call(guest.token, "GET", "/notifications")).json).toEqual([]);
  expect((await call(guest.token, "POST", `/invitations/${second.id}/accept`)).status).toBe(404);
  expect((await call(guest.token, "GET", path)).status).toBe(404);
});

test("expires an invitation after seven days", async () => {
  const { invite } = await teamOf();
  const guest = await person();
  const { json } = await invite(guest.email);
  clock.advance(7 * 86_400_000);
  expect((await call(guest.token, "GET", "/invitations")).json).toEqual([]);
  expect((await call(guest.token, "POST", `/invitations/${json.id}/accept`)).code).toBe(
    "invitation_not_found",
  );
  expect((await invite(guest.email)).status).toBe(201);
});

test("shows an invitation to a person whose account is created later", async () => {
  const { invite } = await teamOf();
  const email = "later@example.test";
  const { json } = await invite(email);
  const made = await createUser(app, systemActor("test"), {
    email,
    name: "Late",
    password: "a long password",
  });
  const { plaintext } = await makeToken(db, made.userId);
  expect((await call(plaintext, "GET", "/invitations")).json).toEqual([json]);
  expect((await call(plaintext, "POST", `/invitations/${json.id}/accept`)).status).toBe(200);
});

test("counts open invitations against the plan, and ends those of a member who is removed", async () => {
  const { id, invite, owner, path } = await teamOf();
  const admin = await person();
  const accepted = (await invite(admin.email, "admin")).json;
  await call(admin.token, "POST", `/invitations/${accepted.id}/accept`);
  const guest = await person();
  const by = await call(admin.token, "POST", `${path}/members`, { email: guest.email });
  expect(by.status).toBe(201);
  expect((await invite("fourth@example.test")).json).toMatchObject({
    code: "plan_limit",
    limit: "team_members",
  });
  expect((await call(owner.token, "DELETE", `/teams/${id}/members/${admin.id}`)).status).toBe(204);
  expect((await call(guest.token, "GET", "/invitations")).json).toEqual([]);
});

test("refuses invitations to a scoped and a bound token", async () => {
  const { id, invite, path } = await teamOf();
  const guest = await person();
  const { json } = await invite(guest.email);
  const scoped = await makeToken(db, guest.id, { scopes: ["platform:write"] });
  const own = await makeToken(db, guest.id, {
    workspaceId: (
      await db
        .selectFrom("workspaces")
        .select("id")
        .where("owner_user_id", "=", guest.id)
        .executeTakeFirstOrThrow()
    ).id,
  });
  for (const { plaintext } of [scoped, own]) {
    for (const [method, at] of [
      ["GET", "/invitations"],
      ["POST", `/invitations/${json.id}/accept`],
      ["POST", `/invitations/${json.id}/decline`],
    ] as const) {
      expect((await call(plaintext, method, at)).code, at).toBe("full_access_required");
    }
  }
  const owner = await makeToken(db, (await teamOf()).owner.id, { scopes: ["platform:write"] });
  expect((await call(owner.plaintext, "GET", `${path}/invitations`)).code).toBe("team_not_found");
  expect((await call(guest.token, "GET", `/teams/${id}`)).status).toBe(404);
});
