import { expect, test } from "vitest";
import { RuntimeError } from "./driver.ts";
import { run } from "./exec.ts";

const failure = async (promise: Promise<unknown>): Promise<RuntimeError> => {
  const error = await promise.then(
    () => undefined,
    (error: unknown) => error,
  );
  expect(error).toBeInstanceOf(RuntimeError);
  return error as RuntimeError;
};

test("passes stdin to a program and returns both streams", async () => {
  const result = await run(["sh", "-c", "cat; echo warning >&2"], { stdin: "hello" });
  expect(result).toEqual({ code: 0, stdout: "hello", stderr: "warning\n" });
});

test("passes arguments of any content to the program unchanged", async () => {
  expect((await run(["printf", "%s", "$(id); `id` \"'\n"])).stdout).toBe("$(id); `id` \"'\n");
});

test("names the program, its exit code and its last lines when it fails", async () => {
  const error = await failure(run(["sh", "-c", "echo reason >&2; exit 3"]));
  expect(error).toMatchObject({ kind: "failed", message: "sh exited with 3: reason", details: { code: 3 } });
});

test("accepts an exit code that the caller allows", async () => {
  expect((await run(["sh", "-c", "exit 4"], { okCodes: [0, 4] })).code).toBe(4);
});

test("kills a program at its deadline, also when a grandchild keeps the pipes open", async () => {
  const error = await failure(run(["sh", "-c", "sleep 5 & wait"], { timeoutMs: 50 }));
  expect(error.kind).toBe("timeout");
});

test("kills a program without output at its quiet limit, but not a program that keeps printing", async () => {
  const quiet = await failure(run(["sh", "-c", "echo begun; sleep 20"], { quietMs: 300 }));
  expect(quiet).toMatchObject({ kind: "timeout", message: "sh printed nothing for 300 ms" });
  const printing = ["sh", "-c", "for n in 1 2 3 4 5 6 7 8; do echo $n; sleep 0.5; done"];
  const { stdout } = await run(printing, { quietMs: 3_000 });
  expect(stdout.trim().split("\n")).toHaveLength(8);
});

test("reports a missing program as a fault of the host", async () => {
  expect((await failure(run(["kontor-no-such-program"]))).kind).toBe("host_unsupported");
});

test("drops output beyond the limit, but keeps the last output", async () => {
  const { stdout } = await run(["sh", "-c", "head -c 3000000 /dev/zero; printf end"], {
    maxOutputBytes: 1000,
  });
  expect(stdout.length).toBeLessThanOrEqual(1000 + 4096);
  expect(stdout.endsWith("end")).toBe(true);
});

test("accepts a program that ignores its stdin and exits with 0", async () => {
  expect((await run(["true"], { stdin: "x".repeat(1_000_000) })).code).toBe(0);
});

test("kills the program on abort", async () => {
  expect((await failure(run(["sleep", "60"], { signal: AbortSignal.abort() }))).message).toContain("aborted");
});
