/** The background work of this room, by the names it is queued under. */
import type { App } from "#app.ts";
import type { Tasks } from "#jobs/jobs.ts";
import { destroyMachine, endMachineTask } from "./vm/end.ts";

export const agentTasks = (app: App): Tasks => ({
  [endMachineTask]: ({ session }: { session: string }) => destroyMachine(app, session),
});
