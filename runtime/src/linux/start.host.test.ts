import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, test } from "vitest";
import { failureKind } from "../conformance.ts";
import { needsProcSysNetMask, startUnderShim } from "./start.ts";

const exec = promisify(execFile);
const repository = join(import.meta.dirname, "..", "..", "..");
const shim = join(repository, "runtime", "shim", "build", "kontor-shim");
let directory: string;

beforeAll(async () => {
  await exec("make", ["-C", join(repository, "runtime", "shim")]);
  directory = await mkdtemp(join(tmpdir(), "kontor-shim-"));
});
afterAll(() => rm(directory, { recursive: true }));

const start = (script: string, maskProcSysNet = false) =>
  startUnderShim({
    shim,
    maskProcSysNet,
    argv: ["sh", "-c", script, directory],
    log: join(directory, "log"),
  });

/** Lists the processes with this test's directory in their arguments. */
const alive = async () =>
  (await exec("ps", ["-eo", "args"])).stdout.split("\n").filter((line) => line.includes(directory)).length;

test("accepts a program that exits with 0, and reports the log of a program that fails", async () => {
  await start("true");
  await writeFile(join(directory, "log"), '{"msg":"no such rootfs","level":"error"}');
  await expect(start("exit 3")).rejects.toMatchObject({
    kind: "failed",
    details: { status: "exit 3", said: "no such rootfs" },
  });
  await rm(join(directory, "log"));
});

test("reports a missing program as a fault of the host", async () => {
  const start = startUnderShim({
    shim,
    maskProcSysNet: false,
    argv: ["/no/such/runsc"],
    log: "/nonexistent",
  });
  expect(await failureKind(start)).toBe("host_unsupported");
});

test("keeps the shim until it has reaped the last descendant", async () => {
  // $0 is the directory: it marks the shim and the orphan in the process list.
  await start('mkfifo "$0/gate"; setsid sh -c \'cat "$0/gate" > "$0/done"\' "$0" &');
  expect(await alive()).toBeGreaterThanOrEqual(2);
  await writeFile(join(directory, "gate"), "opened");
  await expect.poll(alive).toBe(0);
  expect(await readFile(join(directory, "done"), "utf8")).toBe("opened");
});

test("discards the program's output, and masks /proc/sys/net for the program only", async () => {
  await start('echo out; echo err >&2; ls /proc/sys/net > "$0/seen"', true);
  expect(await readFile(join(directory, "seen"), "utf8")).toBe("");
  expect((await exec("ls", ["/proc/sys/net"])).stdout).toContain("core");
});

test("detects whether this host needs the mask of /proc/sys/net", async () => {
  expect(await needsProcSysNetMask()).toBeTypeOf("boolean");
});
