import { mkdtempSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { withRestartSettings } from "../../../server/src/restart-settings.ts";
import { forgetRestartSettings, writeRestartSettings } from "./restart-settings.ts";

function directory(): string {
  const data = mkdtempSync(path.join(tmpdir(), "kontor-restart-"));
  onTestFinished(() => rmSync(data, { recursive: true }));
  return data;
}

test("hands the settings of each restart to the next server, and keeps those that a later one does not name", () => {
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
