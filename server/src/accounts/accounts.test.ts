/** Tests accounts through the real HTTP layer, on a real database. */
import { randomUUID } from "node:crypto";
import { sql } from "kysely";
import { afterAll, beforeAll, expect, test } from "vitest";
import { createHttpServer, type HttpServer } from "#http/server.ts";
import { platformRoutes } from "#platform/api.ts";
import { FunctionInstances } from "#platform/instances/instances.ts";
import { Addons } from "#platform/addons/addons.ts";
import { Backups } from "#platform/backups/backups.ts";
import { openBlobs } from "#platform/backups/blobs.ts";
import { Apps } from "#platform/apps/apps.ts";
import { makePerson, makeProject, makeTeam, makeToken } from "../../test/factories.ts";
import { silentLog, testClock, testConfig, testDatabase, testSecrets } from "../../test/harness.ts";
import type { App } from "../app.ts";
import { accessLogOf } from "./activity/access-log.ts";
import { recordActivity, systemActor, withoutSecrets } from "./activity/activity.ts";
import { bootstrapOperator, type OperatorSecrets } from "./bootstrap.ts";
import { planLimit } from "./errors.ts";
import { findActor, clearActorCache } from "./find-actor.ts";
import { withLimitNotifications } from "./notifications/limits.ts";
import { hashPassword, isPassword } from "./passwords.ts";
import { addMemberBeyondPlan } from "./teams/teams.ts";
import { createUser, resetPassword } from "./users/users.ts";
import { deleteUserByEmail } from "./users/delete-user.ts";
import { setPlan, setSuspended } from "./workspaces.ts";

// oxlint-disable-next-line typescript/no-explicit-any -- an answer's shape is what these tests are about
type Json = any;

const { db } = await testDatabase();
const clock = testClock();
const lines: string[] = [];
const log = Object.assign(Object.create(silentLog) as typeof silentLog, {
  info: (...line: unknown[]) => lines.push(JSON.stringify(line)),
  debug: (...line: unknown[]) => lines.push(JSON.stringify(line)),
  error: (...line: unknown[]) => lines.push(JSON.stringify(line)),
});
// The tested functions need only this part of App.
const app = {
  config: testConfig({ rateLimits: "off" }),
  db,
  clock,
  log,
  secrets: testSecrets(),
} as unknown as App;
/** Number of resources in each workspace, by workspace id. */
const ships = new Map<string, number>();
const addons = new Addons(app);
const none = async () => ({ items: [], total: 0 });
const operator = systemActor("test");
let server: HttpServer;
let first: OperatorSecrets;

beforeAll(async () => {
  server = await createHttpServer(
    app,
    {
      platform: withLimitNotifications(
        app,
        platformRoutes(app, {
          holdings: [{ noun: "ships", count: async (_, id) => ships.get(id) ?? 0 }],
          sandboxes: none,
          workers: none,
          pendingApprovals: none,
          apps: new Apps(app),
          functions: new FunctionInstances(app),
          addons,
          backups: new Backups(app, addons, openBlobs(app.config)),
        }),
      ),
      sandbox: [],
      agent: [],
    },
    { findActor: (credential) => findActor(app, credential) },
  );
  first = (await bootstrapOperator(app))!;
});
afterAll(() => server.close());

async function call(
  credential: string | null,
  method: string,
  path: string,
  body?: unknown,
  headers: Record<string, string> = {},
) {
  const shown =
    credential === null
      ? {}
      : credential.startsWith("svc_")
        ? { authorization: `Bearer ${credential}` }
        : { cookie: credential };
  const response = await server.fastify.inject({
    method: method as "GET",
    url: `/api/v1${path}`,
    headers: { ...shown, ...headers },
    ...(body === undefined ? {} : { payload: body as object }),
  });
  const json = (response.payload === "" ? null : response.json()) as Json;
  return { status: response.statusCode, json, headers: response.headers };
}

test("creates one operator at the first start, and none at a later start", async () => {
  const kept: OperatorSecrets[] = [];
  const again = await Promise.all(
    [1, 2].map(() => bootstrapOperator(app, async (secrets) => void kept.push(secrets))),
  );
  expect([again, kept]).toEqual([[undefined, undefined], []]);
  expect(first.token).toMatch(/^svc_[A-Za-z0-9]{40}$/);
  const { json } = await call(first.token, "GET", "/session");
  expect(json.user).toMatchObject({ email: "operator@kontor.local", is_operator: true });
  expect(json.workspaces).toMatchObject([{ kind: "personal", plan: "team", sandbox_tier: "enterprise" }]);
});

test("creates no account if its secrets could not be stored", async () => {
  const other = await testDatabase();
  const lost = { ...app, db: other.db };
  await expect(bootstrapOperator(lost, () => Promise.reject(new Error("disk full")))).rejects.toThrow(
    "disk full",
  );
  expect(await bootstrapOperator(lost)).toBeDefined();
});

test("checks a password against argon2id with its stored parameters", async () => {
  const hash = await hashPassword("correct horse");
  expect(hash).toMatch(/^\$argon2id\$m=19456,t=2,p=1\$/);
  expect(await isPassword("correct horse", hash)).toBe(true);
  expect(await isPassword("wrong horse", hash)).toBe(false);
  expect(await isPassword("", "!")).toBe(false);
});

test("signs in, reads, and ends the session after sign-out, a password reset or two weeks", async () => {
  await createUser(app, operator, { email: "Ann@Example.test", name: "Ann", password: "ann's password" });
  const signIn = async (password = "ann's password") => {
    const answer = await call(null, "POST", "/session", { email: "ann@example.TEST", password });
    const [device = "", session = ""] = [answer.headers["set-cookie"] ?? []].flat();
    return { ...answer, device, session, cookie: session.split(";")[0]! };
  };
  const { status, cookie, session, device, json } = await signIn();
  expect(status).toBe(201);
  expect(device).toMatch(
    /^kontor_device=[\w.-]+; Path=\/api\/v1\/session; Max-Age=31536000; HttpOnly; SameSite=Strict$/,
  );
  expect(session).toMatch(/^kontor_session=kse_\w{40}; Path=\/; Max-Age=1209600; HttpOnly; SameSite=Lax$/);
  expect(json.user).toMatchObject({ email: "ann@example.test", is_operator: false });
  expect((await call(cookie, "GET", "/session")).status).toBe(200);
  expect((await call(cookie, "DELETE", "/session", undefined, { origin: "http://evil.test" })).status).toBe(
    403,
  );
  expect((await call(cookie, "DELETE", "/session")).status).toBe(204);
  expect((await call(cookie, "GET", "/session")).status).toBe(401);

  const second = await signIn();
  await resetPassword(app, operator, "ann@example.test", "a new password");
  expect((await call(second.cookie, "GET", "/session")).status).toBe(401);
  expect((await signIn()).json).toMatchObject({ code: "sign_in_refused" });

  const third = await signIn("a new password");
  clock.advance(14 * 86_400_000);
  expect((await call(third.cookie, "GET", "/session")).status).toBe(401);
});

test("limits the rate of password guesses, for known and unknown addresses alike", async () => {
  for (const email of ["operator@kontor.local", "nobody@example.test"]) {
    const answers = [];
    for (let guess = 0; guess < 12; guess++) {
      answers.push((await call(null, "POST", "/session", { email, password: "guess" })).status);
    }
    expect(answers.slice(0, 10)).toEqual(Array(10).fill(401));
    expect(answers.slice(10)).toEqual([429, 429]);
    clock.advance(600_000);
  }
});

test("changes a password with the current one, ends the other sessions, and lists and ends sessions", async () => {
  const email = `${randomUUID()}@example.test`;
  await createUser(app, operator, { email, name: "Own", password: "the first password" });
  const signIn = async (password: string) => {
    const { status, headers } = await call(null, "POST", "/session", { email, password });
    return { status, cookie: [headers["set-cookie"] ?? []].flat()[1]?.split(";")[0] ?? "" };
  };
  const [here, elsewhere] = [await signIn("the first password"), await signIn("the first password")];
  const listed = await call(here.cookie, "GET", "/sessions");
  expect(listed.json.map(({ current, ip }: Json) => [current, ip]).toSorted()).toEqual([
    [false, "127.0.0.1"],
    [true, "127.0.0.1"],
  ]);
  const change = (current_password: string, new_password: string) =>
    call(here.cookie, "PUT", "/session/password", { current_password, new_password });
  expect(await change("a guess", "the second password")).toMatchObject({
    status: 403,
    json: { code: "password_wrong" },
  });
  expect((await change("the first password", "short")).status).toBe(422);
  expect((await change("the first password", "the second password")).status).toBe(204);
  expect((await call(elsewhere.cookie, "GET", "/session")).status).toBe(401);
  expect((await call(here.cookie, "GET", "/session")).status).toBe(200);
  expect((await signIn("the first password")).status).toBe(401);

  const third = await signIn("the second password");
  const other = (await call(here.cookie, "GET", "/sessions")).json.find(({ current }: Json) => !current);
  expect((await call(here.cookie, "DELETE", `/sessions/${other.id}`)).status).toBe(204);
  expect((await call(third.cookie, "GET", "/session")).status).toBe(401);
  expect((await call(here.cookie, "DELETE", `/sessions/${other.id}`)).json.code).toBe("session_not_found");

  const user = await db.selectFrom("users").select("id").where("email", "=", email).executeTakeFirstOrThrow();
  const scoped = await makeToken(db, user.id, { scopes: ["platform:read", "platform:write"] });
  for (const [method, path, body] of [
    ["GET", "/sessions"],
    ["DELETE", `/sessions/${other.id}`],
    ["PUT", "/session/password", { current_password: "the second password", new_password: "a third one" }],
  ] as const) {
    expect((await call(scoped.plaintext, method, path, body)).json.code).toBe("full_access_required");
  }
});

test("accepts the owner's sign-in while another address guesses, and audits refused sign-ins", async () => {
  const password = "a long password";
  const email = `locked-${randomUUID()}@example.test`;
  await createUser(app, operator, { email, name: "Locked", password });
  const attempt = (remoteAddress: string, given: string, cookie?: string) =>
    server.fastify.inject({
      method: "POST",
      url: "/api/v1/session",
      remoteAddress,
      payload: { email, password: given },
      headers: cookie === undefined ? {} : { cookie },
    });
  const own = await attempt("198.51.100.1", password);
  const device = [own.headers["set-cookie"]].flat()[0]!.split(";")[0]!;
  const guesses = [];
  for (let n = 0; n < 12; n++) guesses.push((await attempt("203.0.113.9", "guess")).statusCode);
  expect(guesses).toEqual([...Array(10).fill(401), 429, 429]);
  expect((await attempt("198.51.100.2", password)).statusCode).toBe(201);
  expect((await attempt("203.0.113.9", password, `${device}x`)).statusCode).toBe(429);
  expect((await attempt("203.0.113.9", password, device)).statusCode).toBe(201);
  await accessLogOf(app).flush();
  const noted = await db.selectFrom("activity").selectAll().where("target_label", "=", email).execute();
  const by = (action: string) => noted.filter((entry) => entry.action === action);
  expect(by("session.refused")).toHaveLength(10);
  expect(by("session.refused")[0]).toMatchObject({
    ip: "203.0.113.9",
    actor_kind: "system",
    is_access: false,
  });
  expect(by("session.refused")[0]!.workspace_id).toBe(by("session.created")[0]!.workspace_id);
  // Refused sign-ins are audited at most once a minute for each address.
  expect(by("session.limited")).toMatchObject([{ ip: "203.0.113.9" }]);
  expect(JSON.stringify(noted)).not.toContain("guess");
});

test("returns a token's plaintext once, lists only hashes, and revokes a token at once", async () => {
  const created = await call(first.token, "POST", "/api-tokens", { name: "ci", expires_in_days: 30 });
  expect(created.status).toBe(201);
  expect(created.json).toMatchObject({
    name: "ci",
    scopes: null,
    class: "user",
    workspace: null,
    last_used_at: null,
  });
  const { token, id, prefix } = created.json;
  expect(token).toMatch(/^svc_[A-Za-z0-9]{40}$/);
  expect(prefix).toBe(token.slice(0, 8));
  expect(Date.parse(created.json.expires_at) - Date.parse(created.json.created_at)).toBe(30 * 86_400_000);
  const list = await call(token, "GET", "/api-tokens");
  expect(list.json.map(({ name }: Json) => name)).toEqual(["ci", "operator"]);
  expect(JSON.stringify(list.json)).not.toContain(token);
  expect((await call(first.token, "DELETE", `/api-tokens/${id}`)).status).toBe(204);
  expect((await call(token, "GET", "/session")).status).toBe(401);
  expect((await call(first.token, "DELETE", `/api-tokens/${id}`)).json.code).toBe("token_not_found");
});

test("refuses an expired token at once, even while it is cached", async () => {
  const { json } = await call(first.token, "POST", "/api-tokens", { name: "short", expires_in_days: 30 });
  clock.advance(30 * 86_400_000 - 500);
  expect((await call(json.token, "GET", "/session")).status).toBe(200);
  clock.advance(500);
  expect((await call(json.token, "GET", "/session")).status).toBe(401);
});

test("limits active tokens by the plan, and counts no expired or revoked token", async () => {
  const { user } = await makePerson(db);
  const { plaintext } = await makeToken(db, user.id);
  const createSecond = await call(plaintext, "POST", "/api-tokens", { name: "second" });
  expect(createSecond.status).toBe(403);
  expect(createSecond.json).toMatchObject({
    code: "plan_limit",
    limit: "api_tokens",
    allowed: 1,
    tier_needed: "pro",
  });
  const pro = await makePerson(db, { workspace: { plan: "pro" } });
  const own = await makeToken(db, pro.user.id);
  await makeToken(db, pro.user.id, { expiresAt: new Date(clock.now().getTime() - 1) });
  // Concurrent requests get the last free slots only once.
  const answers = await Promise.all(
    [1, 2, 3, 4, 5, 6].map((n) => call(own.plaintext, "POST", "/api-tokens", { name: `token ${n}` })),
  );
  expect(answers.filter(({ status }) => status === 201)).toHaveLength(4);
});

test("notifies a workspace that a limit is reached, at most once a day", async () => {
  const { user, workspace } = await makePerson(db);
  const { plaintext } = await makeToken(db, user.id);
  const createSecond = () => call(plaintext, "POST", "/api-tokens", { name: "second" });
  const listNotifications = async () => (await call(plaintext, "GET", "/notifications")).json as Json[];
  const answers = await Promise.all([createSecond(), createSecond(), createSecond()]);
  expect(answers.map(({ status }) => status)).toEqual([403, 403, 403]);
  const news = {
    kind: "limit_reached",
    title: "The plan's limit of api tokens is reached",
    body: "The plan's limit of api_tokens is reached (1 allowed). For more, change to pro. Delete some, or change the plan.",
    target: { kind: "limit", id: "api_tokens", label: "api tokens" },
  };
  expect(await listNotifications()).toMatchObject([news]);
  await sql`update notifications set created_at = now() - interval '25 hours'
    where workspace_id = ${workspace.id}`.execute(db);
  await createSecond();
  expect(await listNotifications()).toMatchObject([news, news]);
  const other = await makePerson(db);
  const stranger = (await makeToken(db, other.user.id)).plaintext;
  expect((await call(stranger, "GET", "/notifications")).json).toEqual([]);
});

test.each([
  ["rollback", false, "The plan does not include rollback. For more, change to pro."],
  ["size", ["small"], "The plan allows only these values of size: small. For more, change to pro."],
  ["projects", 1, "The plan's limit of projects is reached (1 allowed). For more, change to pro."],
] as const)("describes the exceeded limit in words: %s", (limit, allowed, detail) => {
  expect(planLimit(limit, allowed, "pro").detail).toBe(detail);
});

test("refuses new tokens to a scoped token, a bound token and an agent's token", async () => {
  const { user, workspace } = await makePerson(db, { workspace: { plan: "pro" } });
  const scoped = await makeToken(db, user.id, { scopes: ["platform:read", "platform:write"] });
  const bound = await makeToken(db, user.id, { workspaceId: workspace.id });
  const agent = await makeToken(db, user.id);
  const worker_id = "33333333-3333-4333-8333-333333333333";
  await db
    .updateTable("api_tokens")
    .set({ class: "agent", worker_id })
    .where("id", "=", agent.row.id)
    .execute();
  for (const [token, code] of [
    [scoped, "full_access_required"],
    [bound, "full_access_required"],
    [agent, "agent_token_refused"],
  ] as const) {
    for (const [method, path, body] of [
      ["GET", "/api-tokens"],
      ["POST", "/api-tokens", { name: "wider" }],
      ["DELETE", `/api-tokens/${token.row.id}`],
    ] as const) {
      expect(await call(token.plaintext, method, path, body)).toMatchObject({ status: 403, json: { code } });
    }
  }
  const acting = await findActor(app, { kind: "token", secret: agent.plaintext });
  expect(acting).toMatchObject({ kind: "worker", id: worker_id });
});

test("names the field of an invalid token request", async () => {
  const bad = {
    name: "",
    expires_in_days: 31,
    scopes: ["platform:read", "everything"],
    workspce: "personal",
  };
  const { status, json } = await call(first.token, "POST", "/api-tokens", bad);
  expect(status).toBe(422);
  expect(json.detail.map(({ loc }: Json) => loc.join("."))).toEqual([
    "body.workspce",
    "body.name",
    "body.expires_in_days",
    "body.scopes.1",
  ]);
  const foreign = await call(first.token, "POST", "/api-tokens", { name: "x", workspace: "nobody's" });
  expect(foreign).toMatchObject({ status: 404, json: { code: "workspace_not_found" } });
});

test("treats text that PostgreSQL cannot store as a client error", async () => {
  const { status, json } = await call(first.token, "POST", "/teams", { name: "a\u0000b" });
  expect(status).toBe(422);
  expect(json.detail[0].msg).toContain("NUL");
});

test("limits a token bound to a team to that team, until the membership ends", async () => {
  const owner = await makePerson(db, { workspace: { plan: "team" } });
  const member = await makePerson(db);
  const team = await makeTeam(db, { [owner.user.id]: "owner", [member.user.id]: "member" });
  const { plaintext } = await makeToken(db, member.user.id, { workspaceId: team.id });
  const { json } = await call(plaintext, "GET", "/session");
  expect(json.workspaces.map(({ id }: Json) => id)).toEqual([team.id]);
  const boss = await makeToken(db, owner.user.id);
  expect((await call(boss.plaintext, "DELETE", `/teams/${team.id}/members/${member.user.id}`)).status).toBe(
    204,
  );
  expect((await call(plaintext, "GET", "/session")).status).toBe(401);
});

test("creates, shares, renames and deletes a team, and refuses members beyond those that its plan includes", async () => {
  const [owner, admin, third, fourth] = await Promise.all(
    ["team", "starter", "starter", "starter"].map((plan) =>
      makePerson(db, { workspace: { plan: plan as "team" } }),
    ),
  );
  const [boss, helper] = await Promise.all([owner!, admin!].map(({ user }) => makeToken(db, user.id)));
  const by = boss!.plaintext;
  expect((await call(helper!.plaintext, "POST", "/teams", { name: "no plan" })).json).toMatchObject({
    code: "plan_limit",
    limit: "teams",
    tier_needed: "team",
  });
  const made = await call(by, "POST", "/teams", { name: "Nord" });
  expect(made.status).toBe(201);
  expect(made.json).toMatchObject({ name: "Nord", role: "owner", plan: "team", member_count: 1 });
  const path = `/teams/${made.json.id}`;
  const invite = (token: string, person: typeof owner, role?: string) =>
    call(token, "POST", `${path}/members`, { email: person!.user.email, ...(role ? { role } : {}) });
  const accept = async (token: string) => {
    const [invitation] = (await call(token, "GET", "/invitations")).json;
    return call(token, "POST", `/invitations/${invitation.id}/accept`);
  };
  const guest = await makeToken(db, third!.user.id);
  expect((await invite(by, admin, "admin")).status).toBe(201);
  expect((await accept(helper!.plaintext)).json).toMatchObject({ id: made.json.id, role: "admin" });
  expect((await invite(by, admin)).json.code).toBe("already_member");
  expect((await invite(helper!.plaintext, third)).status).toBe(201);
  expect((await invite(helper!.plaintext, fourth, "owner")).json.code).toBe("insufficient_role");
  expect((await invite(by, fourth)).json).toMatchObject({
    code: "plan_limit",
    limit: "team_members",
    allowed: 3,
  });
  expect((await accept(guest.plaintext)).status).toBe(200);
  await addMemberBeyondPlan(app, operator, made.json.id, { email: fourth!.user.email, role: "member" });
  const team = await call(by, "GET", path);
  expect(team.json.members.map(({ role }: Json) => role)).toEqual(["owner", "admin", "member", "member"]);

  const change = (token: string, person: typeof owner, role: string) =>
    call(token, "PATCH", `${path}/members/${person!.user.id}`, { role });
  expect((await change(helper!.plaintext, admin, "owner")).json.code).toBe("insufficient_role");
  expect((await change(by, owner, "member")).json.code).toBe("last_owner");
  expect((await call(by, "DELETE", `${path}/members/${owner!.user.id}`)).json.code).toBe("last_owner");
  expect((await change(by, admin, "owner")).json.role).toBe("owner");
  expect((await call(by, "PATCH", path, { ...team.json, name: "Süd" })).json.name).toBe("Süd");

  const stranger = await makeToken(db, (await makePerson(db)).user.id);
  const unknown = "44444444-4444-4444-8444-444444444444";
  expect((await call(stranger.plaintext, "GET", path)).json).toEqual(
    (await call(stranger.plaintext, "GET", `/teams/${unknown}`)).json,
  );
  ships.set(made.json.id, 2);
  expect((await call(by, "DELETE", path)).json).toMatchObject({ code: "team_not_empty", left: ["2 ships"] });
  ships.delete(made.json.id);
  expect((await call(by, "DELETE", path)).status).toBe(204);
  expect((await call(by, "GET", path)).json.code).toBe("team_not_found");
});

test("refuses changes in a suspended workspace with 402, and allows reads", async () => {
  const { user, workspace } = await makePerson(db, { workspace: { plan: "team" } });
  const { plaintext } = await makeToken(db, user.id);
  expect((await call(plaintext, "POST", "/teams", { name: "before" })).status).toBe(201);
  await setSuspended(app, operator, workspace.id, true);
  for (const path of ["/api-tokens", "/teams"]) {
    expect(await call(plaintext, "POST", path, { name: "x" })).toMatchObject({
      status: 402,
      json: { code: "account_suspended" },
    });
    expect((await call(plaintext, "GET", path)).status).toBe(200);
  }
  await setSuspended(app, operator, workspace.id, false);
  await setPlan(app, operator, workspace.id, { plan: "pro" });
  expect((await call(plaintext, "POST", "/api-tokens", { name: "again" })).status).toBe(201);
});

/** Creates a person with a sign-in session. */
async function signedIn(email: string): Promise<{ userId: string; workspaceId: string; cookie: string }> {
  const password = "the password";
  const made = await createUser(app, operator, { email, name: "Own Name", password });
  const { headers } = await call(null, "POST", "/session", { email, password });
  return { ...made, cookie: [headers["set-cookie"] ?? []].flat()[1]?.split(";")[0] ?? "" };
}

const deletion = (credential: string, current_password = "the password") =>
  call(credential, "POST", "/account/delete", { current_password });

test("deletes an account with its sessions, tokens and invitations, and keeps its audit entries without the address", async () => {
  const email = `${randomUUID()}@example.test`;
  const { userId, workspaceId, cookie } = await signedIn(email);
  const { plaintext } = await makeToken(db, userId);
  const inviter = await makePerson(db, { workspace: { plan: "team" } });
  const inviterToken = (await makeToken(db, inviter.user.id)).plaintext;
  const team = await call(inviterToken, "POST", "/teams", { name: "Crew" });
  const invited = await call(inviterToken, "POST", `/teams/${team.json.id}/members`, {
    email,
    role: "member",
  });
  expect(invited.status).toBe(201);
  await call(null, "POST", "/session", { email, password: "a guess" });
  await setSuspended(app, operator, workspaceId, true);
  expect(await deletion(cookie, "a guess")).toMatchObject({ status: 403, json: { code: "password_wrong" } });
  expect((await deletion(cookie)).status).toBe(204);
  for (const credential of [cookie, plaintext]) {
    expect((await call(credential, "GET", "/session")).status).toBe(401);
  }
  const invitations = await db
    .selectFrom("team_invitations")
    .selectAll()
    .where("email", "=", email)
    .execute();
  const workspaces = await db.selectFrom("workspaces").selectAll().where("id", "=", workspaceId).execute();
  expect([invitations, workspaces]).toEqual([[], []]);
  const entries = await db
    .selectFrom("activity")
    .selectAll()
    .where((eb) => eb.or([eb("person_id", "=", userId), eb("target_id", "=", userId)]))
    .execute();
  expect(entries.map(({ action }) => action)).toEqual(
    expect.arrayContaining(["user.created", "session.created", "user.deleted"]),
  );
  await accessLogOf(app).flush();
  const everything = JSON.stringify(await db.selectFrom("activity").selectAll().execute());
  expect(everything).not.toContain(email);
  expect(everything).not.toContain("Own Name");
  expect((await call(null, "POST", "/session", { email, password: "the password" })).status).toBe(401);
});

test("refuses to delete an account that still has resources, and names the resources", async () => {
  const { workspaceId, cookie } = await signedIn(`${randomUUID()}@example.test`);
  ships.set(workspaceId, 2);
  expect(await deletion(cookie)).toMatchObject({
    status: 409,
    json: { code: "account_not_empty", left: ["2 ships"] },
  });
  ships.delete(workspaceId);
  expect((await deletion(cookie)).status).toBe(204);
});

test("refuses to delete an account or a team while a database of a deleted project is not removed", async () => {
  const { userId, workspaceId, cookie } = await signedIn(`${randomUUID()}@example.test`);
  const team = await makeTeam(db, { [userId]: "owner" });
  clearActorCache(app);
  const left = ["1 add-ons in deletion"];
  for (const [workspace, remove, code] of [
    [team.id, () => call(cookie, "DELETE", `/teams/${team.id}`), "team_not_empty"],
    [workspaceId, () => deletion(cookie), "account_not_empty"],
  ] as const) {
    const { id } = await makeProject(db, workspace);
    await db.updateTable("projects").set({ deleted_at: clock.now() }).where("id", "=", id).execute();
    await sql`insert into addons (project_id, kind, version, name, size, status, private_index, username, password_sealed)
      values (${id}, 'postgres', '18', 'db', 'small', 'running', 1, 'kontor', '')`.execute(db);
    expect(await remove()).toMatchObject({ status: 409, json: { code, left } });
    await db.deleteFrom("addons").where("project_id", "=", id).execute();
    expect((await remove()).status).toBe(204);
  }
});

test("handles two concurrent deletions of one account without a server error", async () => {
  const { userId, cookie } = await signedIn(`${randomUUID()}@example.test`);
  const answers = await Promise.all([deletion(cookie), deletion(cookie)]);
  for (const { status } of answers) expect([204, 401]).toContain(status);
  expect(await db.selectFrom("users").select("id").where("id", "=", userId).execute()).toEqual([]);
});

test("refuses to delete the only owner of a team, and names the team", async () => {
  const { userId, cookie } = await signedIn(`${randomUUID()}@example.test`);
  const other = await makePerson(db);
  const team = await makeTeam(db, { [userId]: "owner", [other.user.id]: "member" }, { name: "Blue" });
  expect(await deletion(cookie)).toMatchObject({
    status: 409,
    json: { code: "account_owns_teams", teams: ["Blue"] },
  });
  await db
    .updateTable("team_members")
    .set({ role: "owner" })
    .where("workspace_id", "=", team.id)
    .where("user_id", "=", other.user.id)
    .execute();
  expect((await deletion(cookie)).status).toBe(204);
  expect(await db.selectFrom("workspaces").select("id").where("id", "=", team.id).execute()).toHaveLength(1);
});

test("refuses to delete an account with a token that lacks full access", async () => {
  const { user } = await makePerson(db);
  const { plaintext } = await makeToken(db, user.id, { scopes: ["sandboxes:read"] });
  expect((await deletion(plaintext)).status).toBe(403);
});

test("refuses to delete the server's only operator", async () => {
  const holdings = [{ noun: "ships", count: async () => 0 }];
  const remove = () => deleteUserByEmail(app, operator, { email: "operator@kontor.local", holdings });
  await expect(remove()).rejects.toMatchObject({ code: "last_operator" });
});

test("deletes a suspended account", async () => {
  const { workspaceId, cookie } = await signedIn(`${randomUUID()}@example.test`);
  await setSuspended(app, operator, workspaceId, true);
  expect((await deletion(cookie)).status).toBe(204);
});

test("lists activity newest first, by workspace and actor, without other people's entries", async () => {
  const { user, workspace } = await makePerson(db, { workspace: { plan: "team" } });
  const { plaintext } = await makeToken(db, user.id);
  const team = await call(plaintext, "POST", "/teams", { name: "Log" });
  await call(plaintext, "POST", "/api-tokens", { name: "one" });
  const worker = { ...operator, kind: "worker" as const, id: "55555555-5555-4555-8555-555555555555" };
  await recordActivity(
    db,
    worker,
    "sandbox.created",
    { kind: "sandbox", id: "sbx_1", label: null },
    workspace.id,
  );
  const list = (query = "") => call(plaintext, "GET", `/activity${query}`);
  const all = await list();
  expect(all.json).toMatchObject({ total: 3, skip: 0, limit: 30 });
  expect(all.json.items.map(({ action }: Json) => action).toSorted()).toEqual([
    "api_token.created",
    "sandbox.created",
    "team.created",
  ]);
  expect(all.json.items.find(({ action }: Json) => action === "api_token.created")).toMatchObject({
    actor: { kind: "api_token", label: "test", role: "owner" },
    target: { kind: "api_token", label: "one" },
    workspace: "personal",
    ip: "127.0.0.1",
  });
  expect((await list(`?workspace=${team.json.id}`)).json).toMatchObject({ total: 1 });
  expect((await list("?workspace=personal&actor=user")).json).toMatchObject({ total: 1 });
  expect((await list(`?actor=${worker.id}`)).json.items).toMatchObject([{ action: "sandbox.created" }]);
  expect((await list("?skip=1&limit=1")).json).toMatchObject({ total: 3, items: [{}] });
  for (const bad of ["?actor=everyone", "?limit=0", "?limit=101", "?skip=-1", "?actr=user"]) {
    expect((await list(bad)).status).toBe(422);
  }
  expect((await list("?workspace=66666666-6666-4666-8666-666666666666")).status).toBe(404);
});

test("keeps passwords and tokens out of logs, activity and stored responses", async () => {
  const password = "canary-password-9000";
  await createUser(app, operator, { email: "canary@example.test", name: "Canary", password });
  const session = await call(null, "POST", "/session", { email: "canary@example.test", password });
  const cookie = [session.headers["set-cookie"]].flat()[1]!.split(";")[0]!;
  const token = await call(
    cookie,
    "POST",
    "/api-tokens",
    { name: "canary" },
    { "idempotency-key": "canary" },
  );
  await call(cookie, "POST", "/session", { email: "canary@example.test", password, [password]: password });
  await call(null, "GET", `/activity?token=${token.json.token}`);
  const replay = await call(
    cookie,
    "POST",
    "/api-tokens",
    { name: "canary" },
    { "idempotency-key": "canary" },
  );
  expect(replay.json).toMatchObject({ id: token.json.id, token: null });
  const tables = ["activity", "idempotency_keys", "api_tokens", "sessions", "users"] as const;
  const rows = await Promise.all(tables.map((table) => db.selectFrom(table).selectAll().execute()));
  const everything = JSON.stringify([lines, rows]);
  for (const secret of [password, token.json.token, cookie.split("=")[1], first.token, first.password]) {
    expect(secret).toBeTruthy();
    expect(everything).not.toContain(secret);
  }
  expect(
    withoutSecrets({ name: "x", env: { A: "b" }, nested: [{ api_key: "k", size: 1 }], password: "p" }),
  ).toEqual({
    name: "x",
    nested: [{ size: 1 }],
  });
});
