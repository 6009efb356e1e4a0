/** `kontor test` and `kontor check`: what is run is the table in `tests/suites.ts`. */
import { Failure } from "../lib/failure.ts";
import { asRoot, isRoot } from "../lib/places.ts";
import { aptStep } from "../setup/apt.ts";
import { nativeStep } from "../setup/native.ts";
import { checkPackages, testPackages } from "../setup/packages.ts";
import { setUp } from "../setup/setup.ts";
import { addUp, closing, repeatFailures, runLanes, runSuites, type Tally } from "../tests/run-suites.ts";
import { fastSuites, freshRootSuites, lanes } from "../tests/suites.ts";

export async function test(options: { freshRoot?: boolean }): Promise<void> {
  await setUp([aptStep(testPackages), nativeStep]);
  if (!isRoot()) {
    throw new Failure("The tests of the real runtime need root.", {
      hint: `Run: ${asRoot()} (or, without them: kontor check)`,
    });
  }
  const ran = [
    ...(await runSuites(fastSuites)),
    ...(await runLanes(lanes)),
    ...(options.freshRoot ? await runSuites(freshRootSuites) : []),
  ];
  close(await repeatFailures(ran));
}

export async function check(): Promise<void> {
  await setUp([aptStep(checkPackages), nativeStep]);
  close((await runSuites(fastSuites)).map(({ tally }) => tally));
}

function close(tallies: readonly Tally[]): void {
  const tally = addUp(tallies);
  process.stdout.write(closing(tally));
  if (tally.failed > 0) process.exitCode = 1;
}
