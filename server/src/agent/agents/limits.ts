/** A limit against abuse, far above normal use. */
export const agentsMax = 1000;
export const aliasesMax = 100;
/** Alias of a new agent, and default version of a run. */
export const firstAlias = "prod";
