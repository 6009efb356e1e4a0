import { expect, test } from "vitest";
import { AskingCalls, type Asker } from "./asking-calls.ts";

const asker = (): Asker => async () => ({ action: "decline" });

test("assigns a server's question to the call in whose context it arrives, among several calls in flight", async () => {
  const calls = new AskingCalls();
  const [first, second] = [asker(), asker()];
  const currentAsker = async () => {
    await new Promise((resolve) => setImmediate(resolve));
    return calls.current();
  };
  const all = await Promise.all([calls.run(first, currentAsker), calls.run(second, currentAsker)]);
  expect(all).toEqual([first, second]);
});

test("assigns a question outside of any call to the only call in flight, and to none of several calls", async () => {
  const calls = new AskingCalls();
  const gate = Promise.withResolvers<void>();
  const only = asker();
  expect(calls.current()).toBeUndefined();
  const first = calls.run(only, () => gate.promise);
  expect(calls.current()).toBe(only);
  const second = calls.run(asker(), () => gate.promise);
  expect(calls.current()).toBeUndefined();
  gate.resolve();
  await Promise.all([first, second]);
  expect(calls.current()).toBeUndefined();
});

test("assigns a question that arrives after its call to no call", async () => {
  const calls = new AskingCalls();
  const gate = Promise.withResolvers<void>();
  let late: Promise<Asker | undefined> | undefined;
  await calls.run(asker(), async () => {
    late = gate.promise.then(() => calls.current());
  });
  const other = calls.run(asker(), async () => {
    gate.resolve();
    return late;
  });
  expect(await other).toBeUndefined();
});
