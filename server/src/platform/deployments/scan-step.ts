import { told } from "./reasons.ts";
import type { Context, Steps } from "./steps.ts";

/** Beside the other steps: it tells, and nothing waits for it. */
export class Scan {
  readonly #context: Context;
  readonly #steps: Steps;
  #isOver = false;

  constructor(context: Context, steps: Steps, projectId: string, tag: string) {
    this.#context = context;
    this.#steps = steps;
    this.#run(projectId, tag).catch((error: unknown) =>
      context.app.log.warn({ err: error }, "how a scan ended was not noted"),
    );
  }

  async #run(projectId: string, tag: string): Promise<void> {
    const { app, pipeline, log } = this.#context;
    if (!pipeline.scanImage) return this.#end("skipped", null);
    await this.#steps.mark("scan", "running");
    try {
      const found = await pipeline.scanImage(app, projectId, tag);
      if (!this.#isOver) await log.say("scan", found);
      await this.#end("succeeded", null);
    } catch (error) {
      app.log.warn({ err: error }, "an image could not be scanned");
      await this.#end("failed", told(error) ?? "The image could not be scanned.");
    }
  }

  /** One that is not done goes on without us: what it finds lies with the image. */
  leave(): Promise<void> {
    return this.#end("skipped", "Not waited for: what it finds is told with the project's images.");
  }

  async #end(status: "succeeded" | "failed" | "skipped", error: string | null): Promise<void> {
    if (this.#isOver) return;
    this.#isOver = true;
    await this.#steps.mark("scan", status, error);
  }
}
