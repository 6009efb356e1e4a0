/**
 * From credential to Actor, and from Actor to "may call this route". `findActor` is handed in by main, so that HTTP
 * does not know how accounts are kept.
 */
import type { FastifyRequest } from "fastify";
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

export function requireScope(actor: Actor, route: Pick<Route, "scope">): void {
  if (route.scope === null || route.scope === "public") return;
  if (!hasScope(actor, route.scope)) throw missingScope(route.scope);
}
