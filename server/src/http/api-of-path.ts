/** Finds the API that a path belongs to, so that an error outside every route has that API's shape. */
import type { Api } from "./define-route.ts";

const agentPrefix = /^\/v1\/(agents|agent-toolsets|model-credentials|hooks\/agents)(\/|$)/;

export function apiOf(path: string): Api {
  if (agentPrefix.test(path)) return "agent";
  return path.startsWith("/v1/") ? "sandbox" : "platform";
}
