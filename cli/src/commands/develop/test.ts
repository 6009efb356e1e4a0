/** `kontor test` and `kontor check`. The table in `tests/suites.ts` lists their suites. */
import { Failure } from "../../lib/failure.ts";
import { asRoot, isRoot } from "../../lib/places.ts";
import { aptStep } from "../../setup/apt.ts";
import { nativeStep } from "../../setup/native.ts";
import { checkPackages, testPackages } from "../../setup/packages.ts";
import { setUp } from "../../setup/setup.ts";
import { changedSuites, findChangedFiles } from "../../tests/change-suites.ts";
import { addUp, closing, repeatFailures, runLanes, runSuites, type Tally } from "../../tests/run-suites.ts";
import { fastSuites, freshRootSuites, lanes, type Suite } from "../../tests/suites.ts";

export async function test(options: { freshRoot?: boolean }): Promise<void> {
  await setUp([aptStep(testPackages), nativeStep]);
  if (!isRoot()) {
    throw new Failure("The tests of the real runtime need root.", {
      hint: `Run: ${asRoot()} (or run kontor check, which leaves them out)`,
    });
  }
  const fast = await runSuites(fastSuites);
  const slow = [...(await runLanes(lanes)), ...(options.freshRoot ? await runSuites(freshRootSuites) : [])];
  // Other programs use the host too, so failed files run once more, alone. A unit test that passes only then has a
  // defect, and the last lines name it. kontor check repeats no file.
  close(await repeatFailures([...fast, ...slow]));
}

export async function check(options: { changed?: boolean } = {}): Promise<void> {
  await setUp([aptStep(checkPackages), nativeStep]);
  const suites = options.changed ? await suitesOfChange() : fastSuites;
  close((await runSuites(suites)).map(({ tally }) => tally));
}

async function suitesOfChange(): Promise<Suite[]> {
  const changed = await findChangedFiles();
  const { suites, tests } = await changedSuites(changed);
  const omitted = tests.omitted > 0 ? ` (the nearest; kontor check runs ${tests.omitted} more)` : "";
  process.stdout.write(
    `· ${changed.length} changed files reach ${tests.files.length} test files${omitted}\n`,
  );
  return suites;
}

function close(tallies: readonly Tally[]): void {
  const tally = addUp(tallies);
  process.stdout.write(closing(tally));
  if (tally.failed > 0) process.exitCode = 1;
}
