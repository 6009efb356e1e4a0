/** What a forge calls at a push: an address nobody can guess, and the secret it signs with. */
import { newId, randomText } from "#lib/ids.ts";

const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

export function newHook(): { id: string; secret: string } {
  return { id: newId("hook_"), secret: newHookSecret() };
}

export function newHookSecret(): string {
  return randomText(alphabet, 40);
}
