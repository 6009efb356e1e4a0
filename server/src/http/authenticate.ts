/**
 * Resolves a credential to an Actor, and checks whether the Actor may call a route. `main` passes `findActor` in, so
 * that HTTP does not depend on the storage of accounts.
 */
import type { FastifyRequest } from "fastify";
import { accountSuspended, insufficientRole } from "#accounts/errors.ts";
import { type Actor, type Credential, hasScope, type ReachableWorkspace } from "#accounts/actor.ts";
import { credentialOf, isForeignOrigin } from "./credential.ts";
import type { Route } from "./define-route.ts";
import { missingScope, originRefused, unauthenticated } from "./errors.ts";

export type FindActor = (credential: Credential) => Promise<Actor | undefined>;

/** The actor of a request to a public route: it has no identity and no access. */
const publicActor: Actor = {
  kind: "system",
  id: "anonymous",
  label: "anonymous",
  role: null,
  userId: "00000000-0000-0000-0000-000000000000",
  scopes: [],
  tokenId: null,
  workspaces: [],
  ip: null,
};

interface Services {
  findActor: FindActor;
  /** Public address of the server. Null if none is set. */
  publicOrigin: string | null;
  /** Counts an unknown credential for the client's address. Throws when the address exceeds the limit. */
  countUnknown: (address: string) => void;
}

export async function authenticate(
  { findActor, publicOrigin, countUnknown }: Services,
  request: FastifyRequest,
  route: Pick<Route, "scope" | "method">,
  isChange: boolean = route.method !== "GET",
): Promise<Actor> {
  const { headers } = request;
  if (isChange && headers.authorization === undefined && isForeignOrigin(headers, publicOrigin))
    throw originRefused();
  if (route.scope === "public") return { ...publicActor, ip: request.ip };
  const credential = credentialOf(headers);
  const found = credential && (await findActor(credential));
  if (!found) {
    if (credential) countUnknown(request.ip);
    throw unauthenticated();
  }
  return { ...found, ip: request.ip };
}

/** Finds the workspace that owns the object in the path. `main` passes this function in. */
export type WorkspaceOf = (
  actor: Actor,
  target: { path: string; params: Readonly<Record<string, string | undefined>> },
) => Promise<string | undefined>;

function isWrite({ scope, method }: Pick<Route, "scope" | "method">): boolean {
  const changes = scope !== null && (scope.endsWith(":write") || scope === "agents:invoke");
  return changes && method !== "GET";
}

/** True if the route refuses a suspended workspace. All writes do, except writes that free resources. */
export function refusesSuspended(route: Pick<Route, "scope" | "method" | "whileSuspended">): boolean {
  return isWrite(route) && !(route.whileSuspended ?? route.method === "DELETE");
}

/** True if the route refuses a viewer of the team. All writes do, DELETE included. */
export function refusesViewers(route: Pick<Route, "scope" | "method" | "allowsViewers">): boolean {
  return isWrite(route) && route.allowsViewers !== true;
}

/** A request to a route, with the lookup of the workspace that owns the object in its path. */
interface Visit {
  actor: Actor;
  request: FastifyRequest;
  route: Pick<Route, "path">;
  workspaceOf: WorkspaceOf;
}

const isViewed = ({ role }: ReachableWorkspace): boolean => role === "viewer";

/**
 * True if a workspace that passes the test owns the object in the path. No query runs if none or all of the actor's
 * workspaces pass. Undefined if the path names no object.
 */
async function isIn(
  { actor, request, route, workspaceOf }: Visit,
  isSuch: (workspace: ReachableWorkspace) => boolean,
): Promise<boolean | undefined> {
  const such = actor.workspaces.filter(isSuch);
  if (such.length === 0) return false;
  if (such.length === actor.workspaces.length) return true;
  const params = request.params as Record<string, string | undefined>;
  const owner = await workspaceOf(actor, { path: route.path, params });
  return owner === undefined ? undefined : such.some(({ id }) => id === owner);
}

/** Refuses a write in a suspended workspace. The function that creates an object checks a `workspace` in the body. */
export async function requireActive(visit: Visit): Promise<void> {
  if (await isIn(visit, ({ suspended }) => suspended)) throw accountSuspended();
}

/**
 * Returns the actor of a write without the teams of which it is a viewer, so no field of the body reaches them. Refuses
 * a path that names an object of such a team.
 */
export async function requireEditor(visit: Visit): Promise<Actor> {
  const { actor } = visit;
  if (await isIn(visit, isViewed)) throw insufficientRole("member");
  const viewed = actor.workspaces.filter(isViewed);
  if (viewed.length === 0) return actor;
  return { ...actor, viewed, workspaces: actor.workspaces.filter((workspace) => !isViewed(workspace)) };
}

/**
 * True if the response holds hints in place of secrets: for a token that hides secrets, and for a viewer. A list over
 * several workspaces holds hints if the actor is a viewer in any of them.
 */
export async function hidesSecrets(visit: Visit): Promise<boolean> {
  return visit.actor.hidesSecrets === true || (await isIn(visit, isViewed)) !== false;
}

export function requireScope(actor: Actor, route: Pick<Route, "scope">): void {
  if (route.scope === null || route.scope === "public") return;
  if (!hasScope(actor, route.scope)) throw missingScope(route.scope);
}
