/** Helpers that check the responses of any server. */
import { expect } from "vitest";
import type { Reply } from "./api.ts";

/** A sandbox as the API returns it. */
export interface Sandbox {
  id: string;
  status: string;
  expires_at: string;
  [field: string]: unknown;
}

export function base64(content: string | Uint8Array): string {
  return Buffer.from(content).toString("base64");
}

/**
 * Calls `ask` repeatedly until `isThere` accepts the response, and returns that response. Fails with the last response
 * after `withinMs`.
 */
export async function eventually<T>(
  ask: () => Promise<T>,
  isThere: (answer: T) => boolean,
  withinMs = 30_000,
): Promise<T> {
  const deadline = Date.now() + withinMs;
  for (;;) {
    const answer = await ask();
    if (isThere(answer)) return answer;
    if (Date.now() > deadline) throw new Error(`it never came; last: ${JSON.stringify(answer)}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

/** Checks that a refusal has the documented form. */
export function expectRefusal(reply: Reply, status: number, code: string): void {
  expect({ status: reply.status, code: reply.body?.code }, JSON.stringify(reply.body)).toEqual({
    status,
    code,
  });
  expect(typeof reply.body.detail).toBe("string");
  expect(reply.body.detail).not.toBe("");
  expect(reply.headers.get("x-request-id")).toMatch(/^[A-Za-z0-9._-]{1,128}$/);
}
