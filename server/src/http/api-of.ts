/** Which of the three APIs an address belongs to, for the shape of an error where no route says it. */
import type { Api } from "./define-route.ts";

const agentPrefix = /^\/v1\/(agents|agent-toolsets|model-credentials|hooks\/agents)(\/|$)/;

export function apiOf(path: string): Api {
  if (agentPrefix.test(path)) return "agent";
  return path.startsWith("/v1/") ? "sandbox" : "platform";
}
