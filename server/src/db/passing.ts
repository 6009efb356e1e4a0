/** Errors of the database that a later try may not meet: nothing is wrong with what was asked. */

/**
 * SQLSTATE classes: 08 a connection broke; 40 rolled back, by a deadlock for one; 53 short of connections, memory or
 * disk; 57P the server stops, starts, or ended the connection.
 */
const ofServer = /^(?:08|40|53|57P)[0-9A-Z]+$/;
/** Before the server says anything. */
const ofConnection = new Set(["ECONNREFUSED", "ECONNRESET", "ECONNABORTED", "EPIPE", "ETIMEDOUT"]);
/** pg and its pool give these no code. */
const withoutCode =
  /^(?:Connection terminated|timeout exceeded when trying to connect|Client (?:has encountered|was closed))/;

export function isPassing(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const { code, syscall } = error as NodeJS.ErrnoException;
  if (code === undefined) return withoutCode.test(error.message);
  // The socket of one that is away is not there.
  return ofServer.test(code) || ofConnection.has(code) || (code === "ENOENT" && syscall === "connect");
}
