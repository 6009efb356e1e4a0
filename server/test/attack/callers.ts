/** Callers with valid and with invalid credentials. */
import { scopes, teamRoles } from "#accounts/roles.ts";
import { makePerson, makeTeam, makeToken } from "../factories.ts";
import type { World } from "../contract/world.ts";

export interface Callers {
  /** Invalid credentials, which get the same response as a request without a credential. */
  refused: readonly { name: string; token: string }[];
  /** A token for each single scope. */
  scoped: readonly { scope: (typeof scopes)[number]; token: string }[];
  /** A caller for each role in a team with the owner, and a suspended person. */
  others: readonly { name: string; token: string }[];
}

export async function openCallers(world: World): Promise<Callers> {
  const { db } = world.app;
  const token = async (userId: string, options?: Parameters<typeof makeToken>[2]) =>
    (await makeToken(db, userId, options)).plaintext;
  const { userId } = world.owner;
  const revoked = await makeToken(db, userId);
  await db.deleteFrom("api_tokens").where("id", "=", revoked.row.id).execute();
  const expired = await token(userId, { expiresAt: new Date(Date.now() - 1000) });
  const people = await Promise.all(teamRoles.map(async (role) => ({ role, ...(await makePerson(db)) })));
  const members = Object.fromEntries(people.map(({ role, user }) => [user.id, role]));
  await makeTeam(db, { ...members, [userId]: "owner" });
  const suspended = await makePerson(db, { workspace: { suspended_at: new Date() } });
  return {
    refused: [
      { name: "a revoked token", token: revoked.plaintext },
      { name: "an expired token", token: expired },
      { name: "a token of another form", token: "svc_'; --" },
    ],
    scoped: await Promise.all(
      scopes.map(async (scope) => ({ scope, token: await token(userId, { scopes: [scope] }) })),
    ),
    others: [
      ...(await Promise.all(
        people.map(async ({ role, user }) => ({ name: `the team's ${role}`, token: await token(user.id) })),
      )),
      { name: "a suspended person", token: await token(suspended.user.id) },
    ],
  };
}
