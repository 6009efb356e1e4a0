/** Subject of a sign-in: a toolset together with an end user or with the workspace's owner. */
import type { Selectable } from "kysely";
import type { AgentToolsetsTable } from "#agent/toolsets/tables.ts";

export type SignInToolset = Selectable<AgentToolsetsTable>;

/** Value of `end_user_id` for the workspace's owner, whose connection serves all callers. */
export const owner = "-";
