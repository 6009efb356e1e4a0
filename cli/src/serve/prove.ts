/**
 * Proves that a start worked: runs code in a sandbox, through the same API and token that a user has. The code adds two
 * random numbers, so that no cached result passes.
 */
import { setTimeout as delay } from "node:timers/promises";
import { Failure } from "../lib/failure.ts";
import { call, expectOk, type Answer } from "./api.ts";

export interface Proof {
  createMs: number;
  execMs: number;
  deleteMs: number;
  kernel: string;
}

const template = "debian-12";
/**
 * Timeout of the wait for the template. With fast downloads a template takes half a minute. A longer wait means a
 * fault.
 */
const patienceMs = 15 * 60_000;

export async function prove(server: { baseUrl: string; token: string }): Promise<Proof> {
  const [a, b] = [randomNumber(), randomNumber()];
  const startedAt = performance.now();
  const created = await createWhenReady(server);
  const { id } = expectOk(created.answer, "creating a sandbox");
  const createdAt = performance.now();
  try {
    const ran = expectOk(
      await call<{ stdout: string; exit_code: number }>(server, "POST", `/v1/sandboxes/${id}/exec`, {
        command: `echo $((${a} + ${b})); uname -r`,
      }),
      "running code in it",
    );
    const execAt = performance.now();
    const [sum, kernel = ""] = ran.stdout.split("\n");
    if (Number(sum) !== a + b)
      throw new Failure(`the sandbox answered ${JSON.stringify(ran)} to ${a} + ${b}`);
    expectOk(await call(server, "DELETE", `/v1/sandboxes/${id}`), "deleting it");
    return {
      createMs: createdAt - created.askedAt,
      execMs: execAt - createdAt,
      deleteMs: performance.now() - execAt,
      kernel,
    };
  } catch (error) {
    await call(server, "DELETE", `/v1/sandboxes/${id}`).catch(() => {});
    throw error;
  }

  /**
   * Creates a sandbox once the template is ready. A create returns 503 `template_preparing` while the template is made.
   * The measured attempt is the last one.
   */
  async function createWhenReady(
    to: typeof server,
  ): Promise<{ answer: Answer<{ id: string }>; askedAt: number }> {
    for (;;) {
      const askedAt = performance.now();
      const answer = await call<{ id: string; code?: string }>(to, "POST", "/v1/sandboxes", {
        template,
        network: "off",
        timeout_seconds: 60,
      });
      const wait = answer.status === 503 && performance.now() - startedAt < patienceMs;
      if (!wait) return { answer, askedAt };
      await delay(Math.min(answer.retryAfterSeconds, 2) * 1000);
    }
  }
}

function randomNumber(): number {
  return Math.floor(Math.random() * 1_000_000);
}
