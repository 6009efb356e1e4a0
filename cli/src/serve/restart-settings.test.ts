import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { expect, onTestFinished, test, vi } from "vitest";
import { withRestartSettings } from "../../../server/src/restart-settings.ts";
import { restart } from "../commands/restart.ts";
import { forgetRestartSettings, writeRestartSettings } from "./restart-settings.ts";
import { withRunningSettings } from "./running-settings.ts";

function directory(): string {
  const data = mkdtempSync(path.join(tmpdir(), "kontor-restart-"));
  onTestFinished(() => rmSync(data, { recursive: true }));
  return data;
}

test("passes a restart's settings to the next server, and keeps settings that a later restart does not set", () => {
  const data = directory();
  const keeper = { KONTOR_DATA_DIR: data, KONTOR_POOL_SIZE: "1", PATH: "/bin" };
  expect(withRestartSettings(keeper)).toEqual(keeper);
  writeRestartSettings(data, { KONTOR_DATA_DIR: "/elsewhere", KONTOR_POOL_SIZE: "2", HOME: "/root" });
  writeRestartSettings(data, {
    KONTOR_LOG_LEVEL: "debug",
    KONTOR_TOKEN: "svc_canary",
    KONTOR_URL: "http://x",
  });
  expect(withRestartSettings(keeper)).toEqual({
    ...keeper,
    KONTOR_POOL_SIZE: "2",
    KONTOR_LOG_LEVEL: "debug",
  });
  expect(statSync(path.join(data, "restart-settings.json")).mode & 0o777).toBe(0o600);
  forgetRestartSettings(data);
  expect(withRestartSettings(keeper)).toEqual(keeper);
});

/** Starts a process that `findRunning` takes for the server of a data directory, and that has no shim. */
async function startProcess(data: string, settings: Record<string, string>): Promise<void> {
  const child = spawn(
    process.execPath,
    ["--eval", "console.log('up'); setInterval(() => {}, 1000)", "server/src/main.ts"],
    { env: { PATH: "/bin", ...settings }, stdio: ["ignore", "pipe", "ignore"] },
  );
  onTestFinished(() => void child.kill("SIGKILL"));
  await new Promise((resolve) => child.stdout.once("data", resolve));
  const server = { pid: child.pid, port: 8080, base_url: "http://127.0.0.1:8080" };
  writeFileSync(path.join(data, "server.json"), JSON.stringify(server));
}

test("removes a variable of the first shell when a restart sets the variable to an empty text", () => {
  const data = directory();
  writeRestartSettings(data, { KONTOR_POOL_SIZE: "" });
  expect(withRestartSettings({ KONTOR_DATA_DIR: data, KONTOR_POOL_SIZE: "1" })["KONTOR_POOL_SIZE"]).toBe("");
});

test("reports the file and the cure when the stored settings are damaged", () => {
  const data = directory();
  writeFileSync(path.join(data, "restart-settings.json"), "");
  expect(() => withRestartSettings({ KONTOR_DATA_DIR: data })).toThrow(
    /restart-settings\.json is not JSON; remove it/,
  );
});

test("reads the settings of the running server, including its restarts, and not those of the shell", async () => {
  const data = directory();
  const shell = { KONTOR_REGIONS: "shell", KONTOR_LOG_LEVEL: "debug", KONTOR_TOKEN: "t", HOME: "/root" };
  expect(withRunningSettings(data, shell)).toBe(shell);
  await startProcess(data, { KONTOR_REGIONS: "server", KONTOR_POOL_SIZE: "1" });
  writeRestartSettings(data, { KONTOR_POOL_SIZE: "2" });
  expect(withRunningSettings(data, shell)).toEqual({
    HOME: "/root",
    KONTOR_TOKEN: "t",
    KONTOR_DATA_DIR: data,
    KONTOR_REGIONS: "server",
    KONTOR_POOL_SIZE: "2",
  });
});

test("stores no settings when the restart is refused", async () => {
  const data = directory();
  await startProcess(data, {});
  vi.stubEnv("KONTOR_POOL_SIZE", "2");
  onTestFinished(() => void vi.unstubAllEnvs());
  await expect(restart({ data })).rejects.toThrow("was not started by kontor up");
  expect(existsSync(path.join(data, "restart-settings.json"))).toBe(false);
});

test("refuses a restart whose settings contradict those of the running server", async () => {
  const data = directory();
  await startProcess(data, { KONTOR_POOL_MAX: "1", KONTOR_POOL_SIZE: "1" });
  vi.stubEnv("KONTOR_POOL_SIZE", "2");
  onTestFinished(() => void vi.unstubAllEnvs());
  const refused = await restart({ data }).catch((error: unknown) => error);
  expect(refused).toMatchObject({
    message: "The configuration is invalid.",
    hint: expect.stringContaining("KONTOR_POOL_MAX: expected at least pool_size (2)"),
  });
});
