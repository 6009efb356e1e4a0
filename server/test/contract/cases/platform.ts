import { createUser } from "#accounts/users/users.ts";
import { systemActor } from "#accounts/activity/activity.ts";
import { forgetActors } from "#accounts/find-actor.ts";
import { makePerson, makeTeam } from "../../factories.ts";
import type { World } from "../world.ts";
import type { Cases } from "./case.ts";

const nobody = "99999999-9999-4999-8999-999999999999";

/** A team of the owner's with one more member. */
async function team(world: World) {
  const { user } = await makePerson(world.app.db);
  const { id } = await makeTeam(world.app.db, { [world.owner.userId]: "owner", [user.id]: "member" });
  forget(world);
  return { team_id: id, user_id: user.id };
}

/** Rows written behind the server's back: what it remembers of the owner for two seconds would not know them. */
function forget(world: World): void {
  forgetActors(world.app);
}

export const platformCases: Cases = {
  listActivity: { success: () => ({ query: "limit=5&actor=user" }) },

  listApiTokens: { success: () => ({}) },
  createApiToken: {
    success: () => ({ body: { name: "made", expires_in_days: 90, scopes: ["platform:read"] } }),
  },
  revokeApiToken: {
    success: async (world) => {
      const created = await world.call("POST", "/api/v1/api-tokens", {
        token: world.owner.token,
        body: { name: "x" },
      });
      return { params: { token_id: (created.json as { id: string }).id } };
    },
    unknown: { token_id: "tok_doesnotexist" },
  },

  listTeams: { success: async (world) => (await team(world), {}) },
  createTeam: { success: () => ({ body: { name: "Nord" } }) },
  getTeam: {
    success: async (world) => ({ params: { team_id: (await team(world)).team_id } }),
    unknown: { team_id: nobody },
  },
  updateTeam: {
    success: async (world) => ({ params: { team_id: (await team(world)).team_id }, body: { name: "Ost" } }),
    unknown: { team_id: nobody },
  },
  deleteTeam: {
    success: async (world) => ({ params: { team_id: (await team(world)).team_id } }),
    unknown: { team_id: nobody },
  },
  addTeamMember: {
    success: async (world) => {
      const { user } = await makePerson(world.app.db);
      return { params: { team_id: (await team(world)).team_id }, body: { email: user.email } };
    },
    unknown: { team_id: nobody },
  },
  updateTeamMember: {
    success: async (world) => ({ params: await team(world), body: { role: "admin" } }),
    unknown: { team_id: nobody, user_id: nobody },
  },
  removeTeamMember: {
    success: async (world) => ({ params: await team(world) }),
    unknown: { team_id: nobody, user_id: nobody },
  },

  signIn: {
    isPublic: true,
    success: async ({ app }) => {
      const person = { email: "sign-in@example.test", name: "Sign-in", password: "a long password" };
      await createUser(app, systemActor("contract"), person);
      return { body: { email: person.email, password: person.password } };
    },
  },
  getSession: { success: () => ({}) },
  signOut: { success: () => ({}) },
};
