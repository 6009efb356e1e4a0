/** The guard of members and roles, through the real HTTP layer on a real database. */
import { afterAll, expect, test } from "vitest";
import { createHttpServer } from "#http/server.ts";
import { makePerson, makeTeam, makeToken } from "../../../test/factories.ts";
import { silentLog, testClock, testConfig, testDatabase } from "../../../test/harness.ts";
import type { App } from "../../app.ts";
import { findActor } from "../find-actor.ts";
import { teamRoutes } from "./routes.ts";

const { db } = await testDatabase();
// The verbs under test take no more of App than this.
const app = {
  config: testConfig({ rateLimits: "off" }),
  db,
  clock: testClock(),
  log: silentLog,
} as unknown as App;
const server = await createHttpServer(
  app,
  { platform: teamRoutes(app, []), sandbox: [], agent: [] },
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
  const json = (response.payload === "" ? {} : response.json()) as { code?: string };
  return { status: response.statusCode, code: json.code };
}

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
