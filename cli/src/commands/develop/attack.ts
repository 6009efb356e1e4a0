/** `kontor attack`: runs the tests of `server/test/attack/` with new seeds for the given number of minutes. */
import { Failure } from "../../lib/failure.ts";
import { inProduct, productRoot } from "../../lib/places.ts";
import { runHere } from "../../lib/run.ts";
import { aptStep } from "../../setup/apt.ts";
import { nativeStep } from "../../setup/native.ts";
import { checkPackages } from "../../setup/packages.ts";
import { setUp } from "../../setup/setup.ts";

export interface AttackOptions {
  minutes: string;
  seed?: string;
  only?: string;
}

export async function attack({ minutes, seed, only }: AttackOptions): Promise<void> {
  if (!(Number(minutes) > 0)) throw new Failure("--minutes must be a number greater than 0, such as 10.");
  if (seed !== undefined && !/^\d{1,9}$/.test(seed))
    throw new Failure("--seed must be a whole number of at most nine digits, such as 42.");
  await setUp([aptStep(checkPackages), nativeStep]);
  const first = seed ?? String(Math.floor(Math.random() * 1e9));
  process.stdout.write(`Seed ${first}, for ${minutes} min.\n`);
  const code = await runHere(
    [
      process.execPath,
      inProduct("node_modules/vitest/vitest.mjs"),
      "run",
      "--project",
      "server",
      "--retry=0",
      // Findings are printed as they occur. The skipped tests of a single seed are not listed.
      "--reporter=dot",
      "server/test/attack/",
    ],
    {
      cwd: productRoot,
      env: {
        ...process.env,
        KONTOR_ATTACK_MINUTES: minutes,
        KONTOR_ATTACK_SEED: first,
        ...(only === undefined ? {} : { KONTOR_ATTACK_ONLY: only }),
      },
    },
  );
  process.exitCode = code;
}
