/** Background jobs of the Agent API, by task name. */
import type { App } from "#app.ts";
import type { Tasks } from "#jobs/jobs.ts";
import { type Revocation, revokeTask } from "./oauth/revocation.ts";
import { runRevocation } from "./oauth/provider/revoke.ts";
import { terminateMachine, terminateMachineTask } from "./vm/terminate-machines.ts";

export const agentTasks = (app: App): Tasks => ({
  [revokeTask]: (revocation: Revocation, context) => runRevocation(app, revocation, context),
  [terminateMachineTask]: ({ session }: { session: string }) => terminateMachine(app, session),
});
