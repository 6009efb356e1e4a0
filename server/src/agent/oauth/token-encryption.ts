/**
 * Encrypts the tokens of a connection. The additional data contains the connection's id and no person's id, so a job
 * may store the ciphertext.
 */
import type { App } from "#app.ts";
import type { Client, Tokens } from "./provider/tokens.ts";

export interface SealedTokens extends Pick<Tokens, "access_token" | "refresh_token"> {
  client: Client;
}

export function sealTokens(app: Pick<App, "secrets">, id: string, tokens: SealedTokens): Buffer {
  return app.secrets.seal(JSON.stringify(tokens), place(id));
}

export function openTokens(app: Pick<App, "secrets">, id: string, sealed: Buffer): SealedTokens {
  return JSON.parse(app.secrets.open(sealed, place(id)).toString("utf8")) as SealedTokens;
}

function place(id: string): string {
  return `agent_connections:${id}:tokens`;
}
