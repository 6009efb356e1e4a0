/** Address and secret of a project's webhook: a random path for the forge to call, and a secret for its signature. */
import { newId, randomText } from "#lib/ids.ts";

const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

export function newHook(): { id: string; secret: string } {
  return { id: newId("hook_"), secret: newHookSecret() };
}

export function newHookSecret(): string {
  return randomText(alphabet, 40);
}
