/** Far more than anybody keeps in view. */
export const agentsMax = 1000;
export const aliasesMax = 100;
/** The one that a new agent has, and that a run is given where nobody asks for another. */
export const firstAlias = "prod";
