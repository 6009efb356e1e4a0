/**
 * Starts the simulated internet of the test run and one shared server before all test files, and removes both
 * afterwards.
 */
import { DNS_ADDRESS, startInternet } from "@kontor/runtime/network/testing/internet.ts";
import { UndoStack } from "@kontor/runtime/undo.ts";
import type { TestProject } from "vitest/node";
import { startServer } from "./support/server.ts";

export async function setup(project: TestProject): Promise<() => Promise<void>> {
  const undo = new UndoStack();
  const end = async () => {
    const [failure] = await undo.unwind();
    if (failure) throw failure.error;
  };
  try {
    const internet = await startInternet();
    undo.add("internet", () => internet.close());
    const server = await startServer({
      KONTOR_UPLINK: internet.uplink,
      KONTOR_DNS_SERVERS: DNS_ADDRESS,
      // A test fills this disk within a second; no other test needs a larger disk.
      KONTOR_MACHINE_DISK_GB: "1",
    });
    undo.add("server", () => server.destroy());
    project.provide("server", server.description);
    project.provide("internet", internet.uplink);
  } catch (error) {
    await undo.unwind();
    throw error;
  }
  return end;
}
