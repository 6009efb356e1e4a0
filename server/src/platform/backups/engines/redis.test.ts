import { existsSync } from "node:fs";
import { Readable } from "node:stream";
import { expect, test, vi } from "vitest";
import type { Guest, GuestProcess, SpawnSpec } from "#machines/host/guest.ts";
import { testDatabase } from "../../../../test/harness.ts";
import type { AddonRow } from "#platform/addons/find.ts";
import { addonsHost, make, projectOf } from "#platform/addons/testing/addons-host.ts";
import { volumeOf } from "#platform/addons/instances/volume.ts";
import { personOn } from "#platform/testing/platform-app.ts";
import { redis } from "./redis.ts";

const { db } = await testDatabase();
const host = await addonsHost(db);
const signal = AbortSignal.timeout(60_000);

const directory = "/persist/redis/appendonlydir";
const manifest = `${directory}/appendonly.aof.manifest`;
const id = "00000000-0000-4000-8000-00000000000a";
const before = `${directory}/kontor-old-${id.replaceAll("-", "")}`;

test("puts the old data back when Redis does not start with the restored data", async () => {
  const actor = await personOn(db, "team");
  const project = await projectOf(host, actor);
  const addon = await make(host, actor, project.id, { kind: "redis" });
  const running = host.addons.running(addon.id)!;
  await vi.waitFor(() => expect(running.isUp).toBe(true), 20_000);
  const { spec } = (await host.driver.list()).find((one) =>
    one.spec?.volume?.directory.endsWith(volumeOf(addon)),
  )!;
  const guest = running.guest()!;
  const work = { addons: host.addons, addon, id, signal, putsBack: true };
  expect(await redis.isInPlace(work)).toBe(false);
  const roots = ["/persist"];
  await guest.mkdir(directory, { mode: 0o755, parents: true, roots });
  await guest.writeFile(manifest, Buffer.from("restored"), { mode: 0o644, roots });
  await guest.writeFile(before, Buffer.from("old"), { mode: 0o644, roots });
  expect(await redis.isInPlace(work)).toBe(true);
  // The old data is set aside, and Redis cannot read the restored data.
  const aside = before.replace("/persist", spec!.volume!.directory);
  expect(existsSync(aside)).toBe(true);
  Object.defineProperty(host.simulation, "failsNextStart", {
    get: () => (existsSync(aside) ? "Bad file format" : undefined),
    set: () => {},
  });
  await guest.signalCommand(running.command!, 9);
  await vi.waitFor(() => expect(running.row.error).toBe("Bad file format"), 10_000);
  // A much later check leaves the data as it is.
  await expect(redis.isInPlace({ ...work, putsBack: false })).rejects.toThrow("not running");
  expect(existsSync(aside)).toBe(true);
  expect(await redis.isInPlace(work)).toBe(false);
  const { content } = await guest.readFile(manifest);
  expect(Buffer.concat(await content.toArray()).toString()).toBe("old");
  expect(running.isUp).toBe(true);
}, 60_000);

test("aborts the transfer when the store fails", async () => {
  let isEnded = false;
  const answers = (text: string): GuestProcess["output"] =>
    Readable.from([{ stream: "stdout", data: Buffer.from(text) }]) as unknown as GuestProcess["output"];
  const sync = Promise.withResolvers<never>();
  // Yields the first bytes of a dump, then stalls.
  async function* rdb() {
    yield { stream: "stdout" as const, data: Buffer.alloc(300_000) };
    await sync.promise;
  }
  const guest = {
    spawn: async ({ argv = [] }: SpawnSpec) => ({
      output: argv.includes("--rdb") ? rdb() : answers("used_memory_dataset:1\n"),
      exit: Promise.resolve({ code: 0, signal: null }),
      endStdin: () => {},
      close: () => {
        if (!argv.includes("--rdb")) return;
        isEnded = true;
        sync.reject(new Error("let go of"));
      },
    }),
  } as unknown as Guest;
  const saved = redis.dump(
    guest,
    {} as AddonRow,
    async (content) => {
      const bytes = content[Symbol.asyncIterator]();
      await bytes.next();
      bytes.next().catch(() => {});
      throw new Error("the store is full");
    },
    signal,
  );
  await expect(saved).rejects.toThrow("the store is full");
  expect(isEnded).toBe(true);
});
