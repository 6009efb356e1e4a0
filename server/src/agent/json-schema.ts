/**
 * JSON Schemas that callers write: whether one can be used, and whether a value fits it. The checker reads a schema
 * as data, no code is made of it; and since a pattern in it may take for ever on the right text, it works in threads of
 * its own, which are ended where a question takes longer than its time. The answer is no then. An owner has one thread at
 * most, and owners take turns, so that nobody waits for all that somebody else lets run away.
 */
import { once } from "node:events";
import { setImmediate as nextTurn, setTimeout as sleep } from "node:timers/promises";
import { Worker } from "node:worker_threads";
import { FairSemaphore } from "#lib/concurrency/fair-semaphore.ts";
import type { Answer, Question } from "./json-schema-thread.ts";

/** Of JSON text. */
const schemaMaxBytes = 64 * 1024;
const depthMax = 50;
/** A schema of 64 KiB is walked over a text of a megabyte in a tenth of it. */
const withinMs = 500;
const startsWithinMs = 10_000;
const memoryMiB = 128;
/** One for whoever lets checks run away, one for the rest. */
const threadsMax = 2;
/** Of one owner: more than all of a workspace's runs ask for at once. */
const waitingMax = 1_000;

/** To stand after the field's name. `owner`: whoever waits for it. */
export async function whyNotSchema(
  owner: string,
  schema: Record<string, unknown>,
): Promise<string | undefined> {
  if (JSON.stringify(schema).length > schemaMaxBytes) return `must be at most ${schemaMaxBytes} bytes`;
  if (depthOf(schema) > depthMax) return `must be at most ${depthMax} levels deep`;
  const answer = await ask(owner, { schema });
  return "error" in answer ? `is no JSON Schema that can be used: ${answer.error}` : undefined;
}

/** What does not fit, one line for each fault, at most ten; empty where it fits. */
export async function faultsOf(
  owner: string,
  schema: Record<string, unknown>,
  value: unknown,
): Promise<string[]> {
  const answer = await ask(owner, { schema, value: { is: value } });
  return "error" in answer ? [answer.error] : answer.faults;
}

const turns = new FairSemaphore({ limit: threadsMax });
/** Made when they are needed, and anew after each that was ended. */
const idle = new Set<Worker>();

async function ask(owner: string, question: Question): Promise<Answer> {
  if (turns.waiting(owner) >= waitingMax) return { error: "too much is being checked just now; try again" };
  return turns.run(owner, () => askThread(question));
}

async function askThread(question: Question): Promise<Answer> {
  let thread: Worker | undefined;
  try {
    [thread] = idle;
    if (thread) idle.delete(thread);
    else thread = await start();
    const heard = once(thread, "message");
    thread.postMessage(question);
    const answer = (await within(withinMs, heard)) as Answer;
    idle.add(thread);
    return answer;
  } catch (error) {
    await thread?.terminate();
    const { name, code } = error as NodeJS.ErrnoException;
    if (error instanceof Late) return { error: "it takes too long to check" };
    if (code === "ERR_WORKER_OUT_OF_MEMORY") return { error: "it takes too much memory to check" };
    return { error: `it can't be checked (${code ?? name})` };
  }
}

class Late extends Error {}

async function start(): Promise<Worker> {
  const made = new Worker(new URL("./json-schema-thread.ts", import.meta.url), {
    resourceLimits: { maxOldGenerationSizeMb: memoryMiB },
    env: {},
  });
  // It keeps no process from ending, and one that ends of itself is made anew.
  made.unref();
  made.on("error", () => {});
  made.on("exit", () => idle.delete(made));
  try {
    await within(startsWithinMs, once(made, "message"));
  } catch (error) {
    await made.terminate();
    throw error;
  }
  return made;
}

/** The first message; throws `Late`. */
async function within(ms: number, heard: Promise<unknown[]>): Promise<unknown> {
  const stop = new AbortController();
  const late = sleep(ms, undefined, { signal: stop.signal })
    // Where this thread is what was slow, the answer may be there already.
    .then(() => nextTurn())
    .then(() => {
      throw new Late();
    });
  try {
    const [message] = await Promise.race([heard, late]);
    return message;
  } finally {
    stop.abort();
  }
}

function depthOf(value: unknown): number {
  let depth = 0;
  let level: unknown[] = [value];
  while (level.length > 0 && depth <= depthMax) {
    depth += 1;
    level = level.flatMap((one) => (typeof one === "object" && one !== null ? Object.values(one) : []));
  }
  return depth;
}
