/**
 * JSON Schemas of callers: checks schemas, and values against them. The checker interprets a schema as data and
 * generates no code. A pattern may backtrack without end, so checks run in worker threads, and a late thread is
 * terminated. The value then counts as invalid. Each owner has at most one thread at a time, and owners take turns, so
 * that no owner delays the others.
 */
import { once } from "node:events";
import { setImmediate as nextTurn, setTimeout as sleep } from "node:timers/promises";
import { Worker } from "node:worker_threads";
import { FairSemaphore } from "#lib/concurrency/fair-semaphore.ts";
import type { Answer, Question } from "./json-schema-thread.ts";

/** Maximum size of a schema as JSON text, in bytes. */
const schemaMaxBytes = 64 * 1024;
const depthMax = 50;
/** Timeout of a check. A check of a 1 MB text against a schema of 64 KiB takes a tenth of this time. */
const withinMs = 500;
const startsWithinMs = 10_000;
const memoryMiB = 128;
/** Maximum number of threads. While a check of one owner runs without end, the other thread stays free. */
const threadsMax = 2;
/** Maximum number of waiting checks per owner. All concurrent checks of a workspace's runs are fewer. */
const waitingMax = 1_000;

/**
 * Returns the schema's fault, as text that follows the field's name, or undefined for a usable schema. `owner` is the
 * fairness key.
 */
export async function findSchemaFault(
  owner: string,
  schema: Record<string, unknown>,
): Promise<string | undefined> {
  if (JSON.stringify(schema).length > schemaMaxBytes) return `must be at most ${schemaMaxBytes} bytes`;
  if (depthOf(schema) > depthMax) return `must be at most ${depthMax} levels deep`;
  const answer = await ask(owner, { schema });
  return "error" in answer ? `is not a usable JSON Schema: ${answer.error}` : undefined;
}

/** Returns at most ten faults of the value, each as one line. Returns an empty list for a valid value. */
export async function findFaults(
  owner: string,
  schema: Record<string, unknown>,
  value: unknown,
): Promise<string[]> {
  const answer = await ask(owner, { schema, value: { is: value } });
  return "error" in answer ? [answer.error] : answer.faults;
}

const turns = new FairSemaphore({ limit: threadsMax });
/** Idle threads. A thread starts on demand, and a terminated thread is replaced. */
const idle = new Set<Worker>();

async function ask(owner: string, question: Question): Promise<Answer> {
  if (turns.waiting(owner) >= waitingMax) return { error: "too many checks are waiting; try again" };
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
  // This thread does not keep the process alive. A thread that exits is replaced.
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

/** Resolves to the first message. Throws `Late` after `ms` milliseconds. */
async function within(ms: number, heard: Promise<unknown[]>): Promise<unknown> {
  const stop = new AbortController();
  const late = sleep(ms, undefined, { signal: stop.signal })
    // If the main thread itself was slow, the message may have arrived already.
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
