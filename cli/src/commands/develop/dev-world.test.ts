/** `kontor dev-world` as a process: its start, its detached run and its end. */
import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { expect, onTestFinished, test } from "vitest";
import { inProduct } from "../../lib/places.ts";
import { freePort } from "../../serve/port.ts";

const kontor = (...args: string[]) =>
  promisify(execFile)(process.execPath, [inProduct("cli/src/main.ts"), "dev-world", ...args]);

test("runs a dev world in the background until dev-world --stop", async () => {
  const port = String(await freePort());
  onTestFinished(() => void kontor("--stop", "--port", port).catch(() => {}));
  expect((await kontor("--detach", "--port", port)).stdout).toContain(`model=http://127.0.0.1:${port}/v1`);
  expect((await fetch(`http://127.0.0.1:${port}/shop/orders/1`)).status).toBe(200);
  const again = await kontor("--port", port).catch((error: { code: number; stderr: string }) => error);
  expect(again).toMatchObject({ code: 1, stderr: expect.stringContaining("is in use") });
  expect((await kontor("--detach", "--port", port)).stdout).toContain("The dev world is up");
  expect((await kontor("--stop", "--port", port)).stdout).toBe("The dev world is stopped.\n");
  await expect(fetch(`http://127.0.0.1:${port}/hooks`)).rejects.toThrow("fetch failed");
  await expect(kontor("--stop", "--port", port)).rejects.toThrow("No dev world runs on port");
});
