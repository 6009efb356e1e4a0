/**
 * From credential to Actor, and from Actor to "may call this route". `findActor` is handed in by main, so that HTTP
 * does not know how accounts are kept.
 */
import type { FastifyRequest } from "fastify";
import { accountSuspended } from "#accounts/errors.ts";
import { type Actor, type Credential, hasScope } from "#accounts/actor.ts";
import { credentialOf, isForeignOrigin } from "./credential.ts";
import type { Route } from "./define-route.ts";
import { missingScope, originRefused, unauthenticated } from "./errors.ts";

export type FindActor = (credential: Credential) => Promise<Actor | undefined>;

/** Who calls a public route: nobody, reaching nothing. */
const nobody: Actor = {
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

export async function authenticate(
  findActor: FindActor,
  request: FastifyRequest,
  route: Pick<Route, "scope" | "method">,
  publicOrigin: string | null,
  isChange: boolean = route.method !== "GET",
): Promise<Actor> {
  const { headers } = request;
  if (isChange && headers.authorization === undefined && isForeignOrigin(headers, publicOrigin))
    throw originRefused();
  if (route.scope === "public") return { ...nobody, ip: request.ip };
  const credential = credentialOf(headers);
  const found = credential && (await findActor(credential));
  if (!found) throw unauthenticated();
  return { ...found, ip: request.ip };
}

/** Finds the workspace that owns the object in the path; main passes it in. */
export type WorkspaceOf = (
  actor: Actor,
  target: { path: string; params: Readonly<Record<string, string | undefined>> },
) => Promise<string | undefined>;

/** Whether the route refuses a suspended workspace: all writes do, except those that free resources. */
export function refusesSuspended({ scope, method, whileSuspended }: SuspensionRule): boolean {
  const isWrite = scope !== null && (scope.endsWith(":write") || scope === "agents:invoke");
  return isWrite && method !== "GET" && !(whileSuspended ?? method === "DELETE");
}

type SuspensionRule = Pick<Route, "scope" | "method" | "whileSuspended">;

/**
 * Refuses a write in a suspended workspace. Most actors reach no suspended workspace, or suspended ones alone, and cost
 * no query. A `workspace` in the body is checked by the verb that creates the object.
 */
export async function requireActive(
  workspaceOf: WorkspaceOf,
  request: FastifyRequest,
  actor: Actor,
  route: Pick<Route, "path">,
): Promise<void> {
  const suspended = actor.workspaces.filter((workspace) => workspace.suspended).map(({ id }) => id);
  if (suspended.length === 0) return;
  if (suspended.length === actor.workspaces.length) throw accountSuspended();
  const params = request.params as Record<string, string | undefined>;
  const owner = await workspaceOf(actor, { path: route.path, params });
  if (owner !== undefined && suspended.includes(owner)) throw accountSuspended();
}

/** Whether responses hold hints in place of secrets. */
export function hidesSecrets(actor: Actor): boolean {
  return actor.hidesSecrets === true;
}

export function requireScope(actor: Actor, route: Pick<Route, "scope">): void {
  if (route.scope === null || route.scope === "public") return;
  if (!hasScope(actor, route.scope)) throw missingScope(route.scope);
}
