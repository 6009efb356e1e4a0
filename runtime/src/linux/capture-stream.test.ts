import { expect, test } from "vitest";
import type { Guest, GuestProcess, OutputChunk, ProcessExit, RuntimeErrorKind } from "../driver.ts";
import { failureKind } from "../conformance.ts";
import { captureStream } from "./capture-stream.ts";

const whole: ProcessExit = { code: 0, signal: null, timedOut: false, outOfMemory: false, durationUs: 1 };
const never = new Promise<never>(() => {});

/** Returns a guest whose capture prints the chunks, and then ends or hangs. */
function guestThat(chunks: OutputChunk[], exit: Promise<ProcessExit>) {
  let closed = 0;
  const running: Pick<GuestProcess, "output" | "exit" | "endStdin" | "close"> = {
    output: (async function* () {
      yield* chunks;
      await exit;
    })(),
    exit,
    endStdin: () => {},
    close: () => void closed++,
  };
  const guest = { spawn: async () => running } as unknown as Guest;
  return { guest, closed: () => closed };
}

const out = (text: string): OutputChunk => ({ stream: "stdout", data: Buffer.from(text) });
const read = (guest: Guest, limits: { timeoutMs: number; silenceMs?: number }) =>
  Array.fromAsync(captureStream(guest, limits));
const kind = (work: Promise<unknown>): Promise<RuntimeErrorKind | "none"> => failureKind(work);

test("yields the output of the capture", async () => {
  const { guest, closed } = guestThat([out("a"), out("b")], Promise.resolve(whole));
  expect(Buffer.concat(await read(guest, { timeoutMs: 60_000 })).toString()).toBe("ab");
  expect(closed()).toBe(1);
});

test.each([
  ["stays silent", { timeoutMs: 60_000, silenceMs: 20 }],
  ["exceeds the time of the capture", { timeoutMs: 20 }],
])("fails and ends the capture when the guest %s", async (_, limits) => {
  const { guest, closed } = guestThat([out("a")], never);
  expect(await kind(read(guest, limits))).toBe("timeout");
  expect(closed()).toBe(1);
});

test("fails when the guest does not reply to the start of the capture", async () => {
  const guest = { spawn: () => never } as unknown as Guest;
  expect(await kind(read(guest, { timeoutMs: 20 }))).toBe("timeout");
});

test("fails with the error message of a failed capture", async () => {
  const failed = Promise.resolve({ ...whole, code: 1 });
  const { guest } = guestThat([{ stream: "stderr", data: Buffer.from("no memory") }], failed);
  await expect(read(guest, { timeoutMs: 60_000 })).rejects.toThrow("could not be read: no memory");
});
