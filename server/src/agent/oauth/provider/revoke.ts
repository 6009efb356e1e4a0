/** Revokes tokens at the provider. This is best effort: this server has deleted the tokens already. */
import type { App } from "#app.ts";
import type { JobContext } from "#jobs/jobs.ts";
import type { Revocation } from "../revocation.ts";
import { openTokens } from "../token-encryption.ts";
import { revoke } from "./tokens.ts";

export async function runRevocation(
  app: Pick<App, "config" | "secrets" | "log">,
  { connection, sealed, provider }: Revocation,
  { attempt, maxAttempts }: Pick<JobContext, "attempt" | "maxAttempts">,
): Promise<void> {
  const tokens = openTokens(app, connection, Buffer.from(sealed, "base64"));
  try {
    await revoke(app, { provider, client: tokens.client }, tokens);
  } catch (error) {
    // After the last attempt, the job ends without an error, because a failed job would keep the tokens in its row.
    if (attempt < maxAttempts) throw error;
    app.log.warn({ issuer: provider.issuer, error }, "could not revoke the tokens of a deleted connection");
  }
}
