/** How a run enters its session: parts of the statement that begins the run, in this order, with its row `run` before the last. */
export { countsHeld, messagesAdded, type NewSession, sessionAdded, sessionUsed } from "./store.ts";
