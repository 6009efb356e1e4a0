/** The agent runtime API: it has no operations yet, and says so with an empty document. */
import type { Route } from "#http/define-route.ts";
import type { App } from "../app.ts";

const none = async () => ({ items: [], total: 0 });

/** What a workspace's snapshot shows of this room: no agents, and nothing they wait for. */
export const agentBeside = { workers: none, pendingApprovals: none };

export const agentRoutes = (_app: App): Route[] => [];
