/**
 * Images that `kontor up` prepares on request: images of databases, and the bases of functions and apps. Without them,
 * the first use of each image takes minutes.
 */
import { createInterface } from "node:readline/promises";
import { setTimeout as delay } from "node:timers/promises";
import { startStep, type StepView } from "../lib/steps-view.ts";
import { type ImageProgress, readiness } from "./api.ts";

const pollMs = 300;
/** Timeout of the question. After it, the start continues and prepares nothing. */
const askWithinMs = 10_000;

interface Terminal {
  input: NodeJS.ReadableStream;
  output: NodeJS.WritableStream;
}

/** Asks the operator at the first start. Without a response within 10 s, prepares nothing. */
export async function askToPrepare(
  { input, output }: Terminal = { input: process.stdin, output: process.stderr },
  withinMs = askWithinMs,
): Promise<boolean> {
  const terminal = createInterface({ input, output });
  try {
    const typed = await terminal.question(
      `Prepare the images of databases, functions and apps now? It takes some minutes and about 2 GB of disk; otherwise the first use of each waits. [y/N, no after ${withinMs / 1000} s] `,
      { signal: AbortSignal.timeout(withinMs) },
    );
    return /^y(es)?$/i.test(typed.trim());
  } catch (error) {
    const { name } = error as Error;
    if (name !== "AbortError" && name !== "TimeoutError") throw error;
    output.write("\n");
    return false;
  } finally {
    terminal.close();
  }
}

/** Shows each image until it is made. A failed image is shown as failed, and the server stays up. */
export async function waitForImages(
  baseUrl: string,
  {
    read = async () => (await readiness(baseUrl))?.images ?? [],
    start = (title: string): StepView => startStep(title),
  } = {},
): Promise<void> {
  const first = await read();
  for (const { name } of first) {
    const view = start(`Image ${name}`);
    for (;;) {
      const image: ImageProgress | undefined = (await read()).find((one) => one.name === name);
      if (!image) {
        view.fail("the server does not respond");
        return;
      }
      if (image.state === "ready") {
        view.done();
        break;
      }
      if (image.state === "failed") {
        view.fail(`${image.error ?? "failed"} The first use tries again.`);
        break;
      }
      if (image.state === "waiting") view.update("waiting for the templates of sandboxes");
      else view.update(image.step, image.fraction);
      await delay(pollMs);
    }
  }
}
