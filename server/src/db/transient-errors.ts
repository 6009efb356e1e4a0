/** Recognises transient database errors, which a retry may not meet because the statement itself is valid. */

/**
 * SQLSTATE classes: 08 a broken connection; 40 a rollback, for example by a deadlock; 53 a lack of connections, memory
 * or disk; 57P the server stops, starts, or closed the connection.
 */
const ofServer = /^(?:08|40|53|57P)[0-9A-Z]+$/;
/** Errors before the server responds. */
const ofConnection = new Set(["ECONNREFUSED", "ECONNRESET", "ECONNABORTED", "EPIPE", "ETIMEDOUT"]);
/** Messages of errors to which pg and its pool give no code. */
const withoutCode =
  /^(?:Connection terminated|timeout exceeded when trying to connect|Client (?:has encountered|was closed))/;

export function isTransient(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const { code, syscall } = error as NodeJS.ErrnoException;
  if (code === undefined) return withoutCode.test(error.message);
  // A stopped server has no socket file.
  return ofServer.test(code) || ofConnection.has(code) || (code === "ENOENT" && syscall === "connect");
}
