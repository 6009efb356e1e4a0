/**
 * The base environment in a machine's row, encrypted for its owner, so that a row copied to another owner cannot be
 * decrypted.
 */
import type { SecretBox } from "#lib/secret-box.ts";
import type { MachineRow, SnapshotRow } from "../store.ts";

export function sealEnv(app: { secrets: SecretBox }, ownerId: string, env: Record<string, string>): Buffer {
  return app.secrets.seal(JSON.stringify(env), `machines:env:${ownerId}`);
}

export function openEnv(
  app: { secrets: SecretBox },
  row: Pick<MachineRow | SnapshotRow, "env_sealed" | "owner_id">,
): Record<string, string> {
  if (!row.env_sealed || row.owner_id === null) return {};
  return JSON.parse(app.secrets.open(row.env_sealed, `machines:env:${row.owner_id}`).toString()) as Record<
    string,
    string
  >;
}
