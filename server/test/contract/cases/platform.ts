import { createHash, randomUUID } from "node:crypto";
import { createUser } from "#accounts/users/users.ts";
import { systemActor } from "#accounts/activity/activity.ts";
import { clearActorCache } from "#accounts/find-actor.ts";
import { buildAppImage } from "#builds/app-images.ts";
import { notify } from "#accounts/notifications/notifications.ts";
import { repositoryDirectory } from "#platform/git/git.ts";
import { commitFiles } from "#platform/git/testing/git-app.ts";
import { makePerson, makeTeam, makeToken } from "../../factories.ts";
import { release } from "#platform/apps/release/release.ts";
import { freePort } from "#platform/apps/testing/apps-host.ts";
import type { World } from "../world.ts";
import type { Cases } from "./case.ts";

const nobody = "99999999-9999-4999-8999-999999999999";

/** Makes a team of the owner with one more member. */
async function team(world: World) {
  const { user } = await makePerson(world.app.db);
  const { id } = await makeTeam(world.app.db, { [world.owner.userId]: "owner", [user.id]: "member" });
  forget(world);
  return { team_id: id, user_id: user.id };
}

/** Clears the actor cache, which lasts two seconds, because these tests write the rows directly. */
function forget(world: World): void {
  clearActorCache(world.app);
}

/** Makes an open invitation of the owner's team for an address without an account. */
async function invitation(world: World) {
  const { team_id } = await team(world);
  const { json, text, status } = await world.call("POST", `/api/v1/teams/${team_id}/members`, {
    token: world.owner.token,
    body: { email: "invited@example.test" },
  });
  if (status !== 201) throw new Error(`no invitation: ${text}`);
  return { team_id, invitation_id: (json as { id: string }).id };
}

/** Makes an open invitation of the owner to another person's team. */
async function ownInvitation(world: World) {
  const { user } = await makePerson(world.app.db);
  const { id: workspace_id } = await makeTeam(world.app.db, { [user.id]: "owner" });
  const { id } = await world.app.db
    .insertInto("team_invitations")
    .values({
      workspace_id,
      email: world.owner.email,
      role: "member",
      invited_by: user.id,
      created_at: world.app.clock.now(),
      expires_at: new Date(world.app.clock.now().getTime() + 3_600_000),
    })
    .returning("id")
    .executeTakeFirstOrThrow();
  return { invitation_id: id };
}

let made = 0;

/** Creates a hosted project of the owner, in its own team, because plans limit projects. */
async function project(world: World): Promise<{ project_id: string; env_id: string }> {
  const { id: workspace } = await makeTeam(world.app.db, { [world.owner.userId]: "member" });
  forget(world);
  const { json } = await world.call("POST", "/api/v1/projects", {
    token: world.owner.token,
    body: { name: `made-${++made}`, workspace },
  });
  const { id, production_environment_id } = json as { id: string; production_environment_id: string };
  return { project_id: id, env_id: production_environment_id };
}

/**
 * Creates a project with a domain. The domain's name does not resolve, because no DNS server responds in these tests.
 */
async function projectWithDomain(world: World): Promise<string> {
  const { project_id } = await project(world);
  await world.app.db
    .updateTable("projects")
    .set({ custom_domain: `www-${made}.customer.invalid`, domain_status: "pending" })
    .where("id", "=", project_id)
    .execute();
  return project_id;
}

/** Makes a project of the owner with a live deployment. */
async function makeLiveProject(world: World): Promise<{ project_id: string }> {
  const { project_id, env_id } = await project(world);
  const { db, machines } = world.app;
  const { host } = machines;
  const image = await host.ensureImage("debian-12");
  const deployment = await db
    .insertInto("deployments")
    .values({
      project_id,
      environment_id: env_id,
      number: 1,
      status: "live",
      trigger_kind: "api",
      trigger_actor: JSON.stringify({ kind: "user", id: "x", label: "x" }),
      steps: "[]",
      finished_at: new Date(),
    })
    .returningAll()
    .executeTakeFirstOrThrow();
  const port = await freePort();
  const program = `require("node:http").createServer((_, answer) => answer.end()).listen(${port})`;
  const { signal } = new AbortController();
  const candidate = await release(
    world.apps,
    {
      environment: { id: env_id, host_label: `made-${made}` },
      deployment,
      image: { imageId: image.id, run: { env: {}, user: null, cwd: "/" } },
      argv: [process.execPath, "-e", program],
      port,
      healthCheckPath: "/",
      env: {},
      isolation: "native",
      size: "small",
    },
    { log: () => {}, signal },
  );
  await candidate.waitHealthy(signal);
  await candidate.takeOver(signal);
  return { project_id };
}

/** Returns the id of the owner's newest notification. */
async function notification(world: World): Promise<string> {
  await notify(world.app.db, {
    workspaceId: world.owner.workspaceId,
    kind: "domain_verified",
    title: "www.example.com is verified",
    body: "It is served from now on.",
    target: { kind: "project", id: nobody, label: "shop" },
  });
  const { json } = await world.call("GET", "/api/v1/notifications", { token: world.owner.token });
  return (json as { id: string }[])[0]!.id;
}

/** Makes a group of the owner with one project. */
async function group(world: World): Promise<{ group_id: string; project_id: string }> {
  const { project_id } = await project(world);
  const { json: in_ } = await world.call("GET", `/api/v1/projects/${project_id}`, {
    token: world.owner.token,
  });
  const { json } = await world.call("POST", "/api/v1/groups", {
    token: world.owner.token,
    body: { name: "Shops", workspace: (in_ as { workspace: string }).workspace },
  });
  const group_id = (json as { id: string }).id;
  await world.call("POST", `/api/v1/groups/${group_id}/projects/${project_id}`, {
    token: world.owner.token,
  });
  return { group_id, project_id };
}

/** Inserts an unused image of the owner's project. */
async function image(world: World): Promise<{ project_id: string; tag: string }> {
  const { project_id } = await project(world);
  const { workspace_id: workspaceId } = await world.app.db
    .selectFrom("projects")
    .select("workspace_id")
    .where("id", "=", project_id)
    .executeTakeFirstOrThrow();
  const { tag } = await buildAppImage(
    world.app,
    {
      workspaceId,
      projectId: project_id,
      deploymentId: nobody,
      context: world.app.config.dataDir,
      rootDirectory: ".",
      recipe: 'FROM debian:12-slim\nCMD ["true"]\n',
      secrets: {},
      plan: "team",
    },
    { log: () => {}, signal: new AbortController().signal },
  );
  return { project_id, tag };
}

/** Makes an add-on of the owner; no machine is started for it. */
export async function addon(world: World): Promise<{ project_id: string; addon_id: string }> {
  const { project_id } = await project(world);
  const { json } = await world.call("POST", `/api/v1/projects/${project_id}/addons`, {
    token: world.owner.token,
    body: { kind: "postgres" },
  });
  return { project_id, addon_id: (json as { id: string }).id };
}

const noAddon = { project_id: nobody, addon_id: nobody };
const noProject = { project_id: nobody };
const noDeployment = { deployment_id: nobody };

/** Makes a deployment in the queue; no job worker runs in these tests. */
async function deployment(world: World): Promise<{ deployment_id: string }> {
  const { project_id } = await project(world);
  const path = `/api/v1/projects/${project_id}/deployments`;
  const { json } = await world.call("POST", path, { token: world.owner.token });
  return { deployment_id: (json as { id: string }).id };
}

async function liveDeployment(world: World): Promise<{ deployment_id: string }> {
  const made = await deployment(world);
  await world.app.db
    .updateTable("deployments")
    .set({ status: "live", started_at: new Date(), finished_at: new Date() })
    .where("id", "=", made.deployment_id)
    .execute();
  return made;
}

export const platformCases: Cases = {
  listAddons: {
    success: async (world) => ({ params: { project_id: (await addon(world)).project_id } }),
    unknown: noProject,
  },
  createAddon: {
    success: async (world) => ({
      params: { project_id: (await project(world)).project_id },
      body: { kind: "redis", name: "sessions", maxmemory_policy: "allkeys-lru", purpose: "sessions" },
    }),
    unknown: noProject,
    isFreeForm: true,
  },
  getAddon: { success: async (world) => ({ params: await addon(world) }), unknown: noAddon },
  updateAddon: {
    success: async (world) => ({ params: await addon(world), body: { public: true } }),
    unknown: noAddon,
  },
  restartAddon: { success: async (world) => ({ params: await addon(world) }), unknown: noAddon },
  deleteAddon: { success: async (world) => ({ params: await addon(world) }), unknown: noAddon },
  listImages: {
    success: async (world) => ({ params: { project_id: (await image(world)).project_id } }),
    unknown: noProject,
  },
  scanImage: {
    success: async (world) => ({ params: await image(world) }),
    unknown: { project_id: nobody, tag: "b1" },
  },
  deleteImage: {
    success: async (world) => ({ params: await image(world) }),
    unknown: { project_id: nobody, tag: "b1" },
  },
  getProjectWebhook: {
    success: async (world) => ({ params: { project_id: (await project(world)).project_id } }),
    unknown: noProject,
  },
  toggleProjectWebhook: {
    success: async (world) => ({
      params: { project_id: (await project(world)).project_id },
      query: "enable=false&rotate_secret=true",
    }),
    unknown: noProject,
  },
  getProjectDeployKey: {
    success: async (world) => ({ params: { project_id: (await project(world)).project_id } }),
    unknown: noProject,
  },
  receiveGitHook: {
    success: async (world) => {
      const { project_id } = await project(world);
      const { json } = await world.call(
        "POST",
        `/api/v1/projects/${project_id}/webhook/toggle?rotate_secret=true`,
        { token: world.owner.token },
      );
      const { url, secret } = json as { url: string; secret: string };
      return {
        params: { hook_id: url.split("/").at(-1)! },
        body: { ref: "refs/heads/main", after: "1".repeat(40) },
        headers: { "x-gitlab-token": secret, "x-gitlab-event": "Push Hook" },
      };
    },
    isPublic: true,
  },

  listProjects: { success: async (world) => (await project(world), { query: "limit=5" }) },
  createProject: {
    success: async (world) => {
      const { id: workspace } = await makeTeam(world.app.db, { [world.owner.userId]: "member" });
      forget(world);
      return { body: { name: `made-${++made}`, branch: "main", env_vars: { A: "1" }, workspace } };
    },
  },
  checkProjectName: { isOwnerless: true, success: () => ({ params: { name: "surely-free" } }) },
  getProject: {
    success: async (world) => ({ params: { project_id: (await project(world)).project_id } }),
    unknown: noProject,
  },
  updateProject: {
    success: async (world) => ({
      params: { project_id: (await project(world)).project_id },
      body: {
        name: `made-${++made}`,
        repo_url: "ssh://git@git.example.com/team/shop.git",
        branch: "next",
        root_directory: "apps/web",
        port: 3000,
        start_command: "node server.js",
        env_vars: { A: "1", B: null },
        custom_domain: `www-${made}.example.com`,
        isolation: "gvisor",
      },
    }),
    unknown: noProject,
  },
  deleteProject: {
    success: async (world) => ({ params: { project_id: (await project(world)).project_id } }),
    unknown: noProject,
  },
  analyzeProject: {
    success: async (world) => {
      const { project_id } = await project(world);
      await commitFiles(repositoryDirectory(world.app, project_id), "main", { "index.html": "Hello" });
      return { params: { project_id } };
    },
    unknown: noProject,
  },
  getProjectVariables: {
    success: async (world) => ({ params: { project_id: (await project(world)).project_id } }),
    unknown: noProject,
  },
  listEnvironments: {
    success: async (world) => ({ params: { project_id: (await project(world)).project_id } }),
    unknown: noProject,
  },
  createEnvironment: {
    success: async (world) => ({
      params: { project_id: (await project(world)).project_id },
      body: { name: "staging", kind: "staging", branch: "next", env_vars: { A: "1" } },
    }),
    unknown: noProject,
  },
  updateEnvironment: {
    success: async (world) => ({
      params: await project(world),
      body: { branch: "next", env_vars: { A: "1", B: null }, size: "small" },
    }),
    unknown: { project_id: nobody, env_id: nobody },
  },
  deleteEnvironment: {
    success: async (world) => {
      const { project_id } = await project(world);
      const { json } = await world.call("POST", `/api/v1/projects/${project_id}/environments`, {
        token: world.owner.token,
        body: { name: "staging", kind: "staging", branch: "next" },
      });
      return { params: { project_id, env_id: (json as { id: string }).id } };
    },
    unknown: { project_id: nobody, env_id: nobody },
  },
  getEnvironmentVariables: {
    success: async (world) => ({ params: await project(world) }),
    unknown: { project_id: nobody, env_id: nobody },
  },

  listGroups: { success: async (world) => (await group(world), {}) },
  createGroup: { success: () => ({ body: { name: "Shops", description: "All", color: "#3366ff" } }) },
  getGroup: {
    success: async (world) => ({ params: { group_id: (await group(world)).group_id } }),
    unknown: { group_id: nobody },
  },
  updateGroup: {
    success: async (world) => ({
      params: { group_id: (await group(world)).group_id },
      body: { name: "Stores", description: null, color: "#ffffff" },
    }),
    unknown: { group_id: nobody },
  },
  deleteGroup: {
    success: async (world) => ({ params: { group_id: (await group(world)).group_id } }),
    unknown: { group_id: nobody },
  },
  assignProject: {
    success: async (world) => ({ params: await group(world) }),
    unknown: { group_id: nobody },
  },
  unassignProject: {
    success: async (world) => ({ params: await group(world) }),
    unknown: { group_id: nobody },
  },
  getRequestMetrics: {
    success: async (world) => ({
      params: { project_id: (await project(world)).project_id },
      query: "period=15m",
    }),
    unknown: noProject,
  },
  getAppHealth: {
    success: async (world) => ({ params: { project_id: (await project(world)).project_id } }),
    unknown: noProject,
  },
  listDomains: {
    success: async (world) => (await projectWithDomain(world), { query: "workspace=personal" }),
  },
  verifyDomain: {
    success: async (world) => ({ params: { project_id: await projectWithDomain(world) } }),
    unknown: noProject,
  },

  getWorkspace: {
    success: async (world) => {
      const { project_id } = await project(world);
      const { json } = await world.call("GET", `/api/v1/projects/${project_id}`, {
        token: world.owner.token,
      });
      return { query: `workspace=${(json as { workspace: string }).workspace}` };
    },
  },
  getDashboardSummary: { success: () => ({ query: "workspace=personal" }) },

  listNotifications: { success: async (world) => (await notification(world), {}) },
  markNotificationRead: {
    success: async (world) => ({ params: { notification_id: await notification(world) } }),
    unknown: { notification_id: nobody },
  },
  markAllNotificationsRead: { success: async (world) => (await notification(world), {}) },

  getProjectStats: {
    success: async (world) => ({ params: await makeLiveProject(world) }),
    unknown: noProject,
  },
  getProjectLogs: {
    success: async (world) => ({ params: await makeLiveProject(world), query: "lines=5" }),
    unknown: noProject,
  },
  getProjectHealth: {
    success: async (world) => ({ params: await makeLiveProject(world) }),
    unknown: noProject,
  },
  sleepProject: { success: async (world) => ({ params: await makeLiveProject(world) }), unknown: noProject },
  wakeProject: { success: async (world) => ({ params: await makeLiveProject(world) }), unknown: noProject },
  restartProject: {
    success: async (world) => {
      const { project_id, env_id } = await project(world);
      const path = `/api/v1/projects/${project_id}/deployments`;
      const { json } = await world.call("POST", path, { token: world.owner.token });
      const { id } = json as { id: string };
      const { db } = world.app;
      const now = new Date();
      await db
        .updateTable("deployments")
        .set({ status: "live", started_at: now, finished_at: now })
        .where("id", "=", id)
        .execute();
      await db.updateTable("environments").set({ live_deployment_id: id }).where("id", "=", env_id).execute();
      return { params: { project_id }, query: `environment_id=${env_id}` };
    },
    unknown: noProject,
  },
  createDeployment: {
    success: async (world) => {
      const { project_id, env_id } = await project(world);
      return { params: { project_id }, query: `environment_id=${env_id}` };
    },
    unknown: noProject,
  },
  listDeployments: {
    success: async (world) => ({
      params: { project_id: (await project(world)).project_id },
      query: "skip=0&limit=5",
    }),
    unknown: noProject,
  },
  getDeploymentStats: {
    success: async (world) => ({ params: { project_id: (await project(world)).project_id } }),
    unknown: noProject,
  },
  getDeployment: {
    success: async (world) => ({ params: await deployment(world) }),
    unknown: noDeployment,
  },
  readDeploymentLogs: {
    success: async (world) => ({ params: await deployment(world) }),
    unknown: noDeployment,
  },
  readBuildLog: {
    success: async (world) => ({ params: await deployment(world) }),
    unknown: noDeployment,
  },
  rollBackDeployment: {
    success: async (world) => ({ params: await liveDeployment(world), query: "allow_rebuild=true" }),
    unknown: noDeployment,
  },
  cancelDeployment: {
    success: async (world) => ({ params: await deployment(world) }),
    unknown: noDeployment,
  },

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
  listTeamInvitations: {
    success: async (world) => ({ params: { team_id: (await invitation(world)).team_id } }),
    unknown: { team_id: nobody },
  },
  revokeTeamInvitation: {
    success: async (world) => ({ params: await invitation(world) }),
    unknown: { team_id: nobody, invitation_id: nobody },
  },
  listInvitations: { success: async (world) => (await ownInvitation(world), {}) },
  acceptInvitation: {
    success: async (world) => ({ params: await ownInvitation(world) }),
    unknown: { invitation_id: nobody },
  },
  declineInvitation: {
    success: async (world) => ({ params: await ownInvitation(world) }),
    unknown: { invitation_id: nobody },
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
  changePassword: {
    success: async ({ app }) => {
      const email = `${randomUUID()}@example.test`;
      const person = { email, name: "Somebody", password: "a long password" };
      const { userId } = await createUser(app, systemActor("contract"), person);
      const { plaintext } = await makeToken(app.db, userId);
      return {
        body: { current_password: person.password, new_password: "another password" },
        // The owner has no password, so the case needs another user.
        headers: { authorization: `Bearer ${plaintext}` },
      };
    },
  },
  deleteAccount: {
    success: async ({ app }) => {
      const email = `${randomUUID()}@example.test`;
      const person = { email, name: "Somebody", password: "a long password" };
      const { userId } = await createUser(app, systemActor("contract"), person);
      const { plaintext } = await makeToken(app.db, userId);
      return {
        body: { current_password: person.password },
        // The owner has no password, so the case needs another user.
        headers: { authorization: `Bearer ${plaintext}` },
      };
    },
  },
  listSessions: { success: () => ({}) },
  endSession: {
    success: async ({ app, owner }) => {
      const { id } = await app.db
        .insertInto("sessions")
        .values({
          user_id: owner.userId,
          token_hash: createHash("sha256").update(randomUUID()).digest("hex"),
          expires_at: new Date(Date.now() + 3_600_000),
          user_agent: null,
          ip: null,
        })
        .returning("id")
        .executeTakeFirstOrThrow();
      return { params: { session_id: id } };
    },
    unknown: { session_id: nobody },
  },
};
