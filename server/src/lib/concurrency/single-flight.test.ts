import { expect, test } from "vitest";
import { SingleFlight } from "./single-flight.ts";

test("shares a run and its failure among concurrent callers, and starts a new run for later callers", async () => {
  const flights = new SingleFlight<number>();
  const gate = Promise.withResolvers<void>();
  let runs = 0;
  const work = async () => {
    runs += 1;
    await gate.promise;
    if (runs === 1) throw new Error("no luck");
    return runs;
  };
  const both = Promise.allSettled([flights.run("a", work), flights.run("a", work)]);
  gate.resolve();
  expect((await both).map(({ status }) => status)).toEqual(["rejected", "rejected"]);
  expect(await flights.run("a", work)).toBe(2);
});
