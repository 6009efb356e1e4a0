/** Tests the real shim with a small program in place of the server. */
import { type ChildProcess, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { inProduct } from "../lib/places.ts";
import { childrenOf, currentLink, findKeeperOf, followsLink, pointTo, readCurrent } from "./current.ts";

/** Returns the code of a program that writes its directory's name into `starts`, and ends on SIGHUP and SIGTERM. */
const program = (data: string) => `import { appendFileSync } from "node:fs";
process.on("SIGHUP", () => process.exit(0)).on("SIGTERM", () => process.exit(0));
appendFileSync(${JSON.stringify(path.join(data, "starts"))}, import.meta.dirname.split("/").at(-3) + "\\n");
setInterval(() => {}, 1000);`;

/** Makes two directories of code and a link to the first, and starts the shim on a free port. */
async function keep(): Promise<{
  data: string;
  keeper: ChildProcess & { pid: number };
  starts: () => string[];
}> {
  const data = mkdtempSync(path.join(tmpdir(), "kontor-keeper-"));
  onTestFinished(() => rmSync(data, { recursive: true }));
  for (const name of ["old", "new"]) {
    const file = path.join(data, name, "server/src/main.ts");
    mkdirSync(path.dirname(file), { recursive: true });
    writeFileSync(file, program(data));
  }
  pointTo(data, path.join(data, "old"));
  writeFileSync(path.join(data, "starts"), "");
  const main = path.join(currentLink(data), "server/src/main.ts");
  const shim = inProduct("runtime/shim/build/kontor-shim");
  const argv = ["keep", "--listen", "127.0.0.1:0", "--", process.execPath, main];
  const keeper = spawn(shim, argv, { stdio: "ignore" }) as ChildProcess & { pid: number };
  onTestFinished(() => void keeper.kill("SIGTERM"));
  const starts = (): string[] => readFileSync(path.join(data, "starts"), "utf8").split("\n").filter(Boolean);
  await expect.poll(starts).toEqual(["old"]);
  return { data, keeper, starts };
}

/** Starts a process that sends the shim SIGUSR1 and does not exit. */
function startHolder(keeper: number): ChildProcess {
  const holder = spawn(process.execPath, [
    "--eval",
    `process.kill(${keeper}, "SIGUSR1"); setInterval(() => {}, 1000);`,
  ]);
  onTestFinished(() => void holder.kill("SIGKILL"));
  return holder;
}

test("finds the shim of a data directory by the symlink in the shim's arguments", async () => {
  const { data, keeper } = await keep();
  expect(followsLink(keeper.pid, data)).toBe(true);
  expect(followsLink(keeper.pid, path.join(data, "other"))).toBe(false);
  expect(findKeeperOf(data)).toBe(keeper.pid);
  expect(readCurrent(data)).toBe(path.join(data, "old"));
});

test("does not mistake a process in another PID namespace for the shim", async () => {
  const data = mkdtempSync(path.join(tmpdir(), "kontor-keeper-"));
  onTestFinished(() => rmSync(data, { recursive: true }));
  const main = path.join(currentLink(data), "server/src/main.ts");
  // The arguments of `unshare` itself are left out, because it runs in this namespace.
  const play = 'exec sh -c "echo here; read line; :" kontor-shim keep "$MAIN"';
  const machine = spawn("unshare", ["--pid", "--fork", "--kill-child", "sh", "-c", play], {
    env: { ...process.env, MAIN: main },
    stdio: ["pipe", "pipe", "ignore"],
  });
  onTestFinished(() => void machine.kill("SIGKILL"));
  await new Promise((resolve) => machine.stdout.once("data", resolve));
  const [pid = 0] = childrenOf(machine.pid!);
  expect(followsLink(pid, data)).toBe(true);
  expect(findKeeperOf(data)).toBeUndefined();
});

test("starts at each start the code to which the symlink points", async () => {
  const { data, keeper, starts } = await keep();
  pointTo(data, path.join(data, "new"));
  keeper.kill("SIGHUP");
  await expect.poll(starts).toEqual(["old", "new"]);
});

test("delays the next start after SIGUSR1 until SIGHUP", async () => {
  const { data, keeper, starts } = await keep();
  startHolder(keeper.pid);
  await expect.poll(() => childrenOf(keeper.pid)).toEqual([]);
  pointTo(data, path.join(data, "new"));
  expect(starts()).toEqual(["old"]);
  keeper.kill("SIGHUP");
  await expect.poll(starts).toEqual(["old", "new"]);
});

test("starts the program when the process that delayed the start is killed", async () => {
  const { keeper, starts } = await keep();
  const holder = startHolder(keeper.pid);
  await expect.poll(() => childrenOf(keeper.pid)).toEqual([]);
  expect(starts()).toEqual(["old"]);
  holder.kill("SIGKILL");
  await expect.poll(starts).toEqual(["old", "old"]);
});

test("exits on SIGTERM while a start is delayed", async () => {
  const { keeper } = await keep();
  startHolder(keeper.pid);
  await expect.poll(() => childrenOf(keeper.pid)).toEqual([]);
  const end = new Promise((resolve) => keeper.once("exit", resolve));
  keeper.kill("SIGTERM");
  await end;
});

test("restarts a program that fails after a restart, and can be delayed between two attempts", async () => {
  const { data, keeper, starts } = await keep();
  writeFileSync(path.join(data, "new/server/src/main.ts"), "process.exit(1)");
  pointTo(data, path.join(data, "new"));
  keeper.kill("SIGHUP");
  startHolder(keeper.pid);
  await expect.poll(() => childrenOf(keeper.pid)).toEqual([]);
  pointTo(data, path.join(data, "old"));
  keeper.kill("SIGHUP");
  await expect.poll(starts).toEqual(["old", "old"]);
});
