/** An add-on's password: made by us, sealed to its row, opened only for who asks for its address and for its machine. */
import type { App } from "#app.ts";
import { randomText } from "#lib/ids.ts";

type Needs = Pick<App, "secrets">;

/** Nothing that a URL, a shell or a settings file reads as anything else. */
export const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/** About 190 random bits. */
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
