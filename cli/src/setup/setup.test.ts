import { expect, test } from "vitest";
import { setUp, type SetupStep } from "./setup.ts";

function step(missing: string[], install: () => unknown, needsRoot = false): SetupStep {
  return {
    title: "Things",
    needsRoot,
    missing: async () => missing.map((what) => ({ what, why: "the test wants it" })),
    install: async () => void install(),
  };
}

test("skips a step that has nothing to install", async () => {
  let ran = false;
  await setUp([step([], () => (ran = true))]);
  expect(ran).toBe(false);
});

test("stops the set-up if something is still missing after its step", async () => {
  await expect(setUp([step(["runsc"], () => {})])).rejects.toThrow("Set-up stopped at: Things.");
});

test("stops the set-up at a step that fails", async () => {
  const ran: string[] = [];
  const failing = step(["a"], () => {
    throw new Error("no network");
  });
  await expect(setUp([failing, step(["b"], () => ran.push("b"))])).rejects.toThrow("Set-up stopped");
  expect(ran).toEqual([]);
});
