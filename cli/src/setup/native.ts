/** Builds the two small C programs: PID 1 of every machine, and the shim that is its parent on the host. */
import { existsSync } from "node:fs";
import { Failure } from "../lib/failure.ts";
import { inProduct } from "../lib/places.ts";
import { run } from "../lib/run.ts";
import type { SetupStep } from "./setup.ts";

const programs = [
  { folder: "guest", what: "guest program", why: "is PID 1 inside every machine" },
  { folder: "runtime/shim", what: "host shim", why: "stays with each machine on the host and reaps it" },
];

export const nativeStep: SetupStep = {
  title: "Native programs",
  needsRoot: false,
  async missing() {
    // make -q only checks if a target is out of date
    const stale = await Promise.all(
      programs.map(async ({ folder, ...rest }) =>
        existsSync(inProduct(folder, "Makefile")) &&
        (await run(["make", "-q", "-C", inProduct(folder)])).code !== 0
          ? [rest]
          : [],
      ),
    );
    return stale.flat();
  },
  async install(_missing, view) {
    for (const { folder, what } of programs) {
      if (!existsSync(inProduct(folder, "Makefile"))) continue;
      view.update(what);
      const { code, output } = await run(["make", "-C", inProduct(folder)]);
      if (code !== 0)
        throw new Failure(`make -C ${folder} failed`, {
          hint: output.trim().split("\n").slice(-15).join("\n"),
        });
    }
  },
};
