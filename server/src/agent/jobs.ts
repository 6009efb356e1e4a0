/** Background jobs of the Agent API, by task name. */
import type { App } from "#app.ts";
import type { Tasks } from "#jobs/jobs.ts";
import { type Revocation, revokeTask } from "./oauth/forget.ts";
import { carryOutRevocation } from "./oauth/provider/revoke.ts";
import { destroyMachine, endMachineTask } from "./vm/terminate-machines.ts";

export const agentTasks = (app: App): Tasks => ({
  [revokeTask]: (revocation: Revocation, context) => carryOutRevocation(app, revocation, context),
  [endMachineTask]: ({ session }: { session: string }) => destroyMachine(app, session),
});
