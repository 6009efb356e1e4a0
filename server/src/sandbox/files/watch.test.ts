import { mkdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import { testDatabase } from "../../../test/harness.ts";
import { createSandbox } from "../sandboxes/lifecycle/create.ts";
import { pauseSandbox } from "../sandboxes/lifecycle/pause.ts";
import { terminateSandbox } from "../sandboxes/lifecycle/terminate.ts";
import { createInput, personWithTier, testHost } from "../testing/sandbox-app.ts";
import { WatchEvent } from "./schema.ts";
import { startWatch } from "./watch.ts";

const { db } = await testDatabase();
const { app, directory } = await testHost(db);
const { actor } = await personWithTier(db, "enterprise");

async function sandbox(): Promise<{ id: string; workspace: string }> {
  const { id, machine_id } = await createSandbox(app, actor, createInput());
  return { id, workspace: join(directory, "machines", machine_id ?? "", "root/workspace") };
}

/** Starts a watch, runs `work` after the first event, and collects all events. */
async function collectEvents(id: string, path: string, work: () => Promise<unknown>): Promise<WatchEvent[]> {
  const { events } = await startWatch(app, actor, id, { path, recursive: true });
  const all: WatchEvent[] = [];
  for await (const event of events) {
    expect(WatchEvent.safeParse(event).error).toBeUndefined();
    all.push(event);
    if (event.kind === "watching") void work();
  }
  return all;
}

test("emits `watching`, then each change by its absolute path, and ends with the directory", async () => {
  const { id, workspace } = await sandbox();
  await mkdir(join(workspace, "seen"));
  const all = await collectEvents(id, "seen", async () => {
    await writeFile(join(workspace, "seen/one"), "1");
    await sleep(100);
    await rm(join(workspace, "seen"), { recursive: true });
  });
  expect(all).toEqual([
    { kind: "watching", path: "/workspace/seen", recursive: true },
    { kind: "created", path: "/workspace/seen/one", is_dir: false },
    { kind: "deleted", path: "/workspace/seen/one", is_dir: false },
    { kind: "ended", code: "path_not_found", message: expect.any(String) },
  ]);
});

test("ends a watch with its sandbox's run, and names the reason", async () => {
  const { id } = await sandbox();
  const paused = await collectEvents(id, "/workspace", () => pauseSandbox(app, actor, id));
  expect(paused.at(-1)).toMatchObject({ kind: "ended", code: "sandbox_paused" });
  const { id: other } = await sandbox();
  const terminated = await collectEvents(other, "/workspace", () => terminateSandbox(app, actor, other));
  expect(terminated.at(-1)).toMatchObject({ kind: "ended", code: "sandbox_terminated" });
});

test("ends a watch without an event when its reader disconnects", async () => {
  const { id } = await sandbox();
  const { events, stop } = await startWatch(app, actor, id, { path: "/workspace", recursive: false });
  setTimeout(stop, 50);
  expect(await Array.fromAsync(events)).toEqual([{ kind: "watching", path: "/workspace", recursive: false }]);
});

test("refuses a missing path and a path that is not a directory before the stream begins", async () => {
  const { id, workspace } = await sandbox();
  await writeFile(join(workspace, "file"), "");
  const watch = (path: string) => startWatch(app, actor, id, { path, recursive: false });
  await expect(watch("file")).rejects.toMatchObject({ code: "not_directory", status: 400 });
  await expect(watch("nothing")).rejects.toMatchObject({ code: "file_not_found", status: 404 });
});
