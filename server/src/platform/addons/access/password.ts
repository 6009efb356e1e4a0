/** An add-on's password: generated here, sealed to its row, and opened only for a connection URL or for its machine. */
import type { App } from "#app.ts";
import { randomText } from "#lib/ids.ts";

type Needs = Pick<App, "secrets">;

/** Characters of a password. No such character has a special meaning in a URL, a shell or a settings file. */
export const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/** Returns a password of about 190 random bits. */
export function newPassword(): string {
  return randomText(alphabet, 32);
}

export function sealPassword(app: Needs, id: string, password: string): Buffer {
  return app.secrets.seal(password, place(id));
}

export function openPassword(app: Needs, row: { id: string; password_sealed: Buffer }): string {
  return app.secrets.open(row.password_sealed, place(row.id)).toString();
}

function place(id: string): string {
  return `addons:${id}:password`;
}
