/** `kontor test` and `kontor check`: what is run is the table in `tests/suites.ts`. */
import { Failure } from "../lib/failure.ts";
import { asRoot, isRoot } from "../lib/places.ts";
import { aptStep } from "../setup/apt.ts";
import { nativeStep } from "../setup/native.ts";
import { checkPackages, testPackages } from "../setup/packages.ts";
import { setUp } from "../setup/setup.ts";
import { closing, runSuites } from "../tests/run-suites.ts";
import { freshRootSuite, suites, type Suite } from "../tests/suites.ts";

export async function test(options: { freshRoot?: boolean }): Promise<void> {
  await setUp([aptStep(testPackages), nativeStep]);
  if (!isRoot()) {
    throw new Failure("The tests of the real runtime need root.", {
      hint: `Run: ${asRoot()} (or, without them: kontor check)`,
    });
  }
  await runAndClose(options.freshRoot ? [...suites, freshRootSuite] : suites);
}

export async function check(): Promise<void> {
  await setUp([aptStep(checkPackages), nativeStep]);
  await runAndClose(suites.filter(({ fast }) => fast));
}

async function runAndClose(chosen: readonly Suite[]): Promise<void> {
  const tally = await runSuites(chosen);
  process.stdout.write(closing(tally));
  if (tally.failed > 0) process.exitCode = 1;
}
