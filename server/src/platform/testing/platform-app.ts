/** App for tests of projects and their parts, with a real database, a fake clock, users and a team. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll } from "vitest";
import type { Actor } from "#accounts/actor.ts";
import type { Plan } from "#accounts/roles.ts";
import type { App } from "#app.ts";
import { loadConfig } from "#config.ts";
import type { Db } from "#schema.ts";
import { newId } from "#lib/ids.ts";
import { makePerson, makeTeam } from "../../../test/factories.ts";
import { silentLog, type TestClock, testClock, testSecrets } from "../../../test/harness.ts";
import { createProject } from "../projects/create.ts";
import { ProjectCreate } from "../projects/schema.ts";

/** An app without machines and jobs. */
export type ProjectsApp = Omit<App, "jobs" | "machines">;

export async function projectsApp(db: Db): Promise<ProjectsApp & { clock: TestClock }> {
  const dataDir = await mkdtemp(join(tmpdir(), "kontor-projects-"));
  afterAll(() => rm(dataDir, { recursive: true, force: true }));
  const config = loadConfig({
    env: {},
    dataDir,
    overrides: {
      runtime: "fake",
      allowFakeRuntime: "on",
      logLevel: "silent",
      regions: "eu-1=Here,us-1=There",
      appsDomain: "apps.test:8443",
      previewDomain: "preview.test:8443",
    },
  });
  return { config, db, secrets: testSecrets(), clock: testClock(), log: silentLog };
}

/** Creates a user on the plan. Returns the actor of a token with full access. */
export async function personOn(db: Db, plan: Plan): Promise<Actor> {
  const { user, workspace } = await makePerson(db, { workspace: { plan } });
  return {
    kind: "api_token",
    id: newId("tok_"),
    label: user.email,
    role: "owner",
    userId: user.id,
    scopes: null,
    tokenId: newId("tok_"),
    workspaces: [
      { id: workspace.id, kind: "personal", role: "owner", plan, sandboxTier: "free", suspended: false },
    ],
    ip: null,
  };
}

/** Adds the actors to a team. Returns the actors with the team's id. */
export async function inATeam(db: Db, ...members: Actor[]): Promise<{ team: string; actors: Actor[] }> {
  const { id } = await makeTeam(db, Object.fromEntries(members.map(({ userId }) => [userId, "member"])));
  const team = {
    id,
    kind: "team" as const,
    role: "member" as const,
    plan: "team" as const,
    sandboxTier: "free" as const,
    suspended: false,
  };
  return {
    team: id,
    actors: members.map((actor) => ({ ...actor, workspaces: [...actor.workspaces, team] })),
  };
}

/** Returns a validated body of a create request, with defaults. */
export function projectInput(input: Record<string, unknown> = {}): ProjectCreate {
  return ProjectCreate.parse({ name: newId("p-", 12), ...input });
}

export function makeProject(app: ProjectsApp, actor: Actor, input: Record<string, unknown> = {}) {
  return createProject(app, actor, projectInput(input));
}
