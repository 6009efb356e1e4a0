/**
 * The set-up of a host, in steps that can be repeated. A step lists its missing parts and does nothing if there are
 * none. Packages are installed by name through the host's package manager. Without root, the set-up changes nothing,
 * and prints the command to run.
 */
import { Failure } from "../lib/failure.ts";
import { asRoot, isRoot } from "../lib/places.ts";
import { startStep, type StepView } from "../lib/steps-view.ts";

export interface Missing {
  what: string;
  why: string;
}

export interface SetupStep {
  title: string;
  needsRoot: boolean;
  /** Lists missing parts, quickly and without a change; empty if there are none. */
  missing(): Promise<Missing[]>;
  /** Installs the missing parts; throws a Failure with its cure. */
  install(missing: readonly Missing[], view: StepView): Promise<void>;
}

export async function setUp(steps: readonly SetupStep[]): Promise<void> {
  for (const step of steps) {
    const missing = await step.missing();
    if (missing.length === 0) continue;
    for (const { what, why } of missing) process.stderr.write(`  ${what}: ${why}\n`);
    if (step.needsRoot && !isRoot()) {
      throw new Failure(`${step.title} needs root.`, { hint: `Run: ${asRoot()}` });
    }
    const view = startStep(step.title);
    try {
      await step.install(missing, view);
    } catch (error) {
      view.fail(error instanceof Error ? error.message : String(error));
      const hint = error instanceof Failure ? error.hint : undefined;
      throw new Failure(`Set-up stopped at: ${step.title}.`, hint ? { hint } : {});
    }
    const still = await step.missing();
    if (still.length > 0) {
      view.fail(`still missing: ${still.map(({ what }) => what).join(", ")}`);
      throw new Failure(`Set-up stopped at: ${step.title}.`);
    }
    view.done(missing.map(({ what }) => what).join(", "));
  }
}
