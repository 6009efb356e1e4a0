/** Tells a provider that nobody needs some tokens any more. Best effort: here they are forgotten already. */
import type { App } from "#app.ts";
import type { JobContext } from "#jobs/jobs.ts";
import type { Revocation } from "../forget.ts";
import { openTokens } from "../sealed.ts";
import { revoke } from "./tokens.ts";

export async function carryOutRevocation(
  app: Pick<App, "config" | "secrets" | "log">,
  { connection, sealed, provider }: Revocation,
  { attempt, maxAttempts }: Pick<JobContext, "attempt" | "maxAttempts">,
): Promise<void> {
  const tokens = openTokens(app, connection, Buffer.from(sealed, "base64"));
  try {
    await revoke(app, { provider, client: tokens.client }, tokens);
  } catch (error) {
    // A job that failed for good would lie there, tokens and all.
    if (attempt < maxAttempts) throw error;
    app.log.warn({ issuer: provider.issuer, error }, "tokens of a connection could not be revoked");
  }
}
