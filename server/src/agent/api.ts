/** The agent runtime API: it has no operations yet, and says so with an empty document. */
import type { Route } from "#http/define-route.ts";
import type { App } from "../app.ts";

export const agentRoutes = (_app: App): Route[] => [];
