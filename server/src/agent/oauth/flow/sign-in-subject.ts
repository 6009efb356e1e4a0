/** What a sign-in is about: a toolset, and somebody. */
import type { Selectable } from "kysely";
import type { AgentToolsetsTable } from "#agent/toolsets/tables.ts";

export type SignInToolset = Selectable<AgentToolsetsTable>;

/** Who signs in for everybody. */
export const owner = "-";
