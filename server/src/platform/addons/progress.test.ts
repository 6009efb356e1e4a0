import { afterEach, expect, test } from "vitest";
import { HostImages } from "#machines/images.ts";
import { testDatabase } from "../../../test/harness.ts";
import { personOn } from "../testing/platform-app.ts";
import { listAddons, requireAddon } from "./find.ts";
import { toAddon } from "./schema.ts";
import { addonsHost, make, projectOf } from "./testing/addons-host.ts";

const { db } = await testDatabase();
const host = await addonsHost(db);

afterEach(() => {
  host.simulation.during = {};
  host.simulation.failsNextStart = undefined;
});

async function onTeam() {
  const actor = await personOn(db, "team");
  const project = await projectOf(host, actor);
  const get = async (id: string) => toAddon(await requireAddon(host.app, actor, project.id, id));
  return { actor, project, get };
}

test("shows each step of a first start with a rising percent, and no progress once the add-on runs", async () => {
  const { actor, project, get } = await onTeam();
  let seen: (Awaited<ReturnType<typeof get>>["progress"] | undefined)[] = [];
  const see = async () => {
    const [row] = await listAddons(host.app, actor, project.id);
    seen = [...seen, toAddon(row!).progress];
  };
  host.simulation.during = { prepare: see, answer: see };
  const made = await make(host, actor, project.id, { kind: "postgres" });
  expect(toAddon(made).progress).toEqual({ step: "image", percent: 0, message: "Waiting to start." });
  await expect.poll(async () => (await get(made.id)).status, { timeout: 20_000 }).toBe("running");
  expect(seen.map((progress) => progress?.step)).toEqual(["start", "answer"]);
  expect(seen[0]).toEqual({ step: "start", percent: 80, message: "Starting PostgreSQL." });
  expect(seen[1]?.percent).toBe(90);
  expect((await get(made.id)).progress).toBeNull();
});

test("removes the progress of a start that failed", async () => {
  const { actor, project, get } = await onTeam();
  host.simulation.failsNextStart = "no such luck";
  const made = await make(host, actor, project.id, { kind: "redis" });
  await expect.poll(async () => (await get(made.id)).error, { timeout: 20_000 }).toBe("no such luck");
  const { status, progress } = await get(made.id);
  expect(progress === null || status === "running").toBe(true);
  await expect.poll(async () => (await get(made.id)).status, { timeout: 20_000 }).toBe("running");
});

test("clears the progress that a killed server left, before the add-on starts again", async () => {
  const { actor, project, get } = await onTeam();
  const made = await make(host, actor, project.id, { kind: "redis" });
  await expect.poll(async () => (await get(made.id)).status, { timeout: 20_000 }).toBe("running");
  const left = JSON.stringify({ step: "volume", percent: 70, message: "Creating the volume." });
  await db
    .updateTable("addons")
    .set({ progress: left, status: "stopped" })
    .where("id", "=", made.id)
    .execute();
  await host.restart();
  expect((await get(made.id)).progress?.step).not.toBe("volume");
  await expect.poll(async () => (await get(made.id)).status, { timeout: 20_000 }).toBe("running");
  expect((await get(made.id)).progress).toBeNull();
});

test("reports an image's build to every waiting caller, from the current step on", async () => {
  const steps = Promise.withResolvers<(made: { fraction: number; step: string }) => void>();
  const end = Promise.withResolvers<void>();
  const image = { id: "postgres-15-1", sizeBytes: 1, contents: {}, substituted: false };
  const images = new HostImages({
    db,
    log: host.app.log,
    host: {
      id: host.app.machines.host.id,
      imageNames: () => [],
      innerImageNames: () => ["postgres-15"],
      ensureImage: async (_name: string, progress: (made: { fraction: number; step: string }) => void) => {
        steps.resolve(progress);
        await end.promise;
        return image;
      },
    } as never,
  });
  const seen: string[][] = [[], []];
  const listen = (index: number) => (made: { fraction: number; step: string }) =>
    void seen[index]!.push(`${made.step} ${made.fraction}`);
  const first = images.ensure("postgres-15", listen(0));
  (await steps.promise)({ fraction: 0.4, step: "installing packages" });
  const second = images.ensure("postgres-15", listen(1));
  (await steps.promise)({ fraction: 0.9, step: "cleaning up" });
  end.resolve();
  expect(await Promise.all([first, second])).toEqual([image, image]);
  expect(seen[0]).toEqual(["starting 0", "installing packages 0.4", "cleaning up 0.9", "ready 1"]);
  expect(seen[1]).toEqual(["installing packages 0.4", "cleaning up 0.9", "ready 1"]);
  expect(await images.ensure("postgres-15", listen(1))).toEqual(image);
  expect(seen[1]).toHaveLength(3);
});
