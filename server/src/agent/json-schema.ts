/**
 * JSON Schemas that callers write: whether one can be used, and whether a value fits it. The checker reads a schema
 * as data, no code is made of it; and since a pattern in it may take for ever on the right text, it works in a thread
 * of its own, which is ended where a question takes longer than its time. The answer is no then.
 */
import { once } from "node:events";
import { setImmediate as nextTurn, setTimeout as sleep } from "node:timers/promises";
import { Worker } from "node:worker_threads";
import { Semaphore } from "#lib/semaphore.ts";
import type { Answer, Question } from "./json-schema-thread.ts";

/** Of JSON text. */
const schemaMaxBytes = 64 * 1024;
const depthMax = 50;
/** A schema of 64 KiB is walked over a text of a megabyte in a tenth of it. */
const withinMs = 500;
const startsWithinMs = 10_000;
const memoryMiB = 128;
/** A caller waits for those before it. */
const waitingMax = 1_000;

/** To stand after the field's name. */
export async function whyNotSchema(schema: Record<string, unknown>): Promise<string | undefined> {
  if (JSON.stringify(schema).length > schemaMaxBytes) return `must be at most ${schemaMaxBytes} bytes`;
  if (depthOf(schema) > depthMax) return `must be at most ${depthMax} levels deep`;
  const answer = await ask({ schema });
  return "error" in answer ? `is no JSON Schema that can be used: ${answer.error}` : undefined;
}

/** What does not fit, one line for each fault, at most ten; empty where it fits. */
export async function faultsOf(schema: Record<string, unknown>, value: unknown): Promise<string[]> {
  const answer = await ask({ schema, value: { is: value } });
  return "error" in answer ? [answer.error] : answer.faults;
}

/** One for the process, made at the first question and anew after each that was ended. */
let thread: Worker | undefined;
const turns = new Semaphore(1);
let waiting = 0;

async function ask(question: Question): Promise<Answer> {
  if (waiting >= waitingMax) return { error: "too much is being checked just now; try again" };
  waiting += 1;
  try {
    return await turns.run(() => askThread(question));
  } finally {
    waiting -= 1;
  }
}

async function askThread(question: Question): Promise<Answer> {
  try {
    thread ??= await start();
    const heard = once(thread, "message");
    thread.postMessage(question);
    return (await within(withinMs, heard)) as Answer;
  } catch (error) {
    const ended = thread;
    thread = undefined;
    await ended?.terminate();
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
  made.on("exit", () => {
    if (thread === made) thread = undefined;
  });
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
