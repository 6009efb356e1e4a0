/** Encrypts the secrets of a toolset: the secret of its calls, and the secret of its OAuth client. */
import type { App } from "#app.ts";
import { hintOf } from "#lib/secret-hint.ts";
import type { ToolsetRow } from "../store.ts";

type Needs = Pick<App, "secrets">;
type SecretField = "auth_secret" | "oauth_client_secret";

export function openSecret(app: Needs, row: ToolsetRow): string | undefined {
  return open(app, row.id, "auth_secret", row.auth_secret_sealed);
}

export function openClientSecret(app: Needs, row: ToolsetRow): string | undefined {
  return open(app, row.id, "oauth_client_secret", row.oauth_client_secret_sealed);
}

/** Returns the header that contains the secret of the calls. */
export function authOf({ auth_header_name }: ToolsetRow, secret: string | undefined): Record<string, string> {
  if (secret === undefined) return {};
  return auth_header_name === null
    ? { authorization: `Bearer ${secret}` }
    : { [auth_header_name.toLowerCase()]: secret };
}

/** Returns the columns of a secret. An empty secret removes the stored secret. */
export function secretColumns(app: Needs, id: string, secret: string) {
  if (secret === "") return { auth_secret_sealed: null, secret_hint: null };
  return {
    auth_secret_sealed: app.secrets.seal(secret, place(id, "auth_secret")),
    secret_hint: hintOf(secret),
  };
}

export function clientSecretColumns(app: Needs, id: string, secret: string) {
  const sealed = secret === "" ? null : app.secrets.seal(secret, place(id, "oauth_client_secret"));
  return { oauth_client_secret_sealed: sealed };
}

function open({ secrets }: Needs, id: string, kept: SecretField, sealed: Buffer | null): string | undefined {
  return sealed ? secrets.open(sealed, place(id, kept)).toString("utf8") : undefined;
}

function place(id: string, kept: SecretField): string {
  return `agent_toolsets:${id}:${kept}`;
}
