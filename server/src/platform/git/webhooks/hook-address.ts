/** Address and secret of a project's webhook: a random path that the forge calls, and the secret for its signature. */
import { newId, randomText } from "#lib/ids.ts";

const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

export function newHook(): { id: string; secret: string } {
  return { id: newId("hook_"), secret: newHookSecret() };
}

export function newHookSecret(): string {
  return randomText(alphabet, 40);
}
