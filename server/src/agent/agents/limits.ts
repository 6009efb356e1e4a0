/** Maximum number of agents per workspace. The limit prevents abuse and is far above normal use. */
export const agentsMax = 1000;
export const aliasesMax = 100;
/** Name of the alias that a new agent gets. A run without a qualifier uses this alias. */
export const firstAlias = "prod";
