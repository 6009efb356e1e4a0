/** Opens a real browser that trusts a server's authority. */
import { execFile } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { type Browser, chromium } from "playwright-core";
import { onTestFinished } from "vitest";
import type { Server } from "./server.ts";

/** Opens a browser, and closes it when the test ends. */
export async function openBrowser(server: Server): Promise<Browser> {
  const home = mkdtempSync(join(tmpdir(), "kontor-browser-"));
  const database = `sql:${join(home, ".pki/nssdb")}`;
  const run = promisify(execFile);
  await run("mkdir", ["-p", join(home, ".pki/nssdb")]);
  await run("certutil", ["-N", "-d", database, "--empty-password"]);
  const authority = join(server.dataDir, "ca.crt");
  await run("certutil", ["-A", "-d", database, "-n", "kontor", "-t", "C,,", "-i", authority]);
  const browser = await chromium.launch({
    executablePath: "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu"],
    env: { ...process.env, HOME: home },
  });
  onTestFinished(async () => {
    await browser.close();
    rmSync(home, { recursive: true, force: true });
  });
  return browser;
}
