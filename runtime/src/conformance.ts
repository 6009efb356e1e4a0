/**
 * Tests that every driver passes. A driver's own test file calls `conformance` with a function that makes a
 * driver. Tests that need a real machine run only with the matching field of `can`.
 */
import { constants } from "node:os";
import { randomBytes } from "node:crypto";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import {
  RuntimeError,
  type CommandChunk,
  type CommandRecord,
  type Driver,
  type FileChange,
  type Guest,
  type GuestProcess,
  type LayeredImage,
  type MachineExit,
  type MachineId,
  type MachineSpec,
  type Isolation,
  type ProcessExit,
  type ReadOptions,
  type RuntimeErrorKind,
  type SpawnSpec,
  type VolumeSpec,
} from "./driver.ts";

export interface Conformant {
  /** An opened driver. */
  driver: Driver;
  /** Id of an image with a shell and coreutils. */
  image: string;
  /** Isolation of every machine of these tests. */
  isolation?: Isolation;
  /** Layer directories of an image with a shell and coreutils. */
  layers: string[];
  /** Opens another driver on the same state, and leaves the first driver open. */
  again: () => Promise<Driver>;
  /** Closes the driver and deletes everything that the tests left. */
  dispose: () => Promise<void>;
}

export interface Abilities {
  /** Machines have their own kernel, hostname and users. */
  isolation: boolean;
  /** Machines can be checkpointed and captured as images, and their hostname can change. */
  checkpoints: boolean;
  /** Processes of a restored machine continue from the checkpoint. */
  processesContinue: boolean;
}

const MIB = 1024 * 1024;
const ROOTS = { roots: ["/workspace", "/tmp"] };

export function machineId(): MachineId {
  return `m${BigInt(`0x${randomBytes(16).toString("hex")}`)
    .toString(36)
    .padStart(25, "0")
    .slice(-19)}`;
}

export function machineSpec(image: string, change: Partial<MachineSpec> = {}): MachineSpec {
  return {
    id: machineId(),
    generation: 1,
    image,
    resources: { vcpus: 1, memoryBytes: 512 * MIB, diskBytes: 1024 * MIB, maxProcesses: 200 },
    network: "off",
    hostname: "first",
    env: { BASE: "base" },
    ...change,
  };
}

/** Runs the command to its end and returns all output. */
export async function execute(
  driver: Driver,
  id: MachineId,
  spec: Omit<SpawnSpec, "onDisconnect"> | string,
  stdin?: Buffer | string,
): Promise<{ stdout: Buffer; stderr: Buffer; exit: ProcessExit }> {
  const running = await driver
    .guest(id)
    .spawn({ onDisconnect: "kill", ...(typeof spec === "string" ? { shell: spec } : spec) });
  const input = async () => {
    if (stdin !== undefined) await running.writeStdin(Buffer.from(stdin));
    running.endStdin();
  };
  const [output, exit] = await Promise.all([collect(running), running.exit, input()]);
  return { ...output, exit };
}

async function collect(running: GuestProcess): Promise<{ stdout: Buffer; stderr: Buffer }> {
  const parts = { stdout: [] as Buffer[], stderr: [] as Buffer[] };
  for await (const { stream, data } of running.output) parts[stream].push(data);
  return { stdout: Buffer.concat(parts.stdout), stderr: Buffer.concat(parts.stderr) };
}

export async function failureKind(work: Promise<unknown>): Promise<RuntimeErrorKind | "none"> {
  try {
    await work;
    return "none";
  } catch (error) {
    if (error instanceof RuntimeError) return error.kind;
    throw error;
  }
}

async function contentOf(
  driver: Driver,
  id: MachineId,
  path: string,
  options: ReadOptions = {},
): Promise<Buffer> {
  const { content } = await driver.guest(id).readFile(path, options);
  return Buffer.concat(await content.toArray());
}

export function conformance(name: string, make: () => Promise<Conformant>, can: Abilities): void {
  describe(`${name} passes the driver tests`, () => {
    let subject: Conformant;
    let driver: Driver;
    /** A machine for tests that do not change it. */
    let shared: MachineId;

    beforeAll(async () => {
      subject = await make();
      ({ driver } = subject);
      const spec = specOf();
      shared = spec.id;
      await driver.create(spec);
    }, 120_000);

    afterAll(async () => {
      await subject?.dispose();
    }, 60_000);

    function specOf(change: Partial<MachineSpec> = {}): MachineSpec {
      const { image, isolation } = subject;
      return machineSpec(image, isolation === undefined ? change : { isolation, ...change });
    }

    async function boot(change: Partial<MachineSpec> = {}): Promise<MachineSpec> {
      const spec = specOf(change);
      onTestFinished(() => driver.remove(spec.id));
      await driver.create(spec);
      return spec;
    }

    /** Returns an unused path below a new directory of the test. */
    async function emptyPlace(): Promise<string> {
      const parent = await mkdtemp(join(tmpdir(), "kontor-checkpoint-"));
      onTestFinished(() => rm(parent, { recursive: true }));
      return join(parent, "snapshot");
    }

    const stateOf = async (id: MachineId) =>
      (await driver.list()).find((machine) => machine.id === id)?.state;
    const out = async (id: MachineId, spec: Parameters<typeof execute>[2], stdin?: string) =>
      (await execute(driver, id, spec, stdin)).stdout.toString();

    describe("life", () => {
      test("creates a machine that answers and is listed, and removes it", async () => {
        const spec = await boot();
        await driver.guest(spec.id).ping();
        expect((await driver.list()).find(({ id }) => id === spec.id)).toEqual({
          id: spec.id,
          state: "running",
          spec,
          exit: null,
        });
        await driver.remove(spec.id);
        expect(await stateOf(spec.id)).toBeUndefined();
        expect(() => driver.guest(spec.id)).toThrow(expect.objectContaining({ kind: "not_found" }));
      });

      test("rejects a second create with the same id", async () => {
        const again = driver.create(specOf({ id: shared }));
        expect(await failureKind(again)).toBe("already_exists");
        await expect(driver.guest(shared).ping()).resolves.toBeUndefined();
      });

      test("reports a missing image, and leaves no machine", async () => {
        const spec = machineSpec("no-such-image");
        expect(await failureKind(driver.create(spec))).toBe("not_found");
        expect(await stateOf(spec.id)).toBeUndefined();
      });

      test("creates a machine again under the id of a removed one", async () => {
        const spec = await boot();
        await driver.remove(spec.id);
        await driver.create(spec);
        expect(await stateOf(spec.id)).toBe("running");
      });

      test("creates a machine again under an id whose create failed", async () => {
        const spec = machineSpec("no-such-image");
        await failureKind(driver.create(spec));
        await boot({ id: spec.id });
        expect(await stateOf(spec.id)).toBe("running");
      });

      test("creates and removes machines concurrently", async () => {
        const specs = await Promise.all([boot(), boot(), boot()]);
        const answers = await Promise.all(specs.map(({ id }) => out(id, `printf ${id}`)));
        expect(answers).toEqual(specs.map(({ id }) => id));
        await Promise.all(specs.map(({ id }) => driver.remove(id)));
        await expect(driver.guest(shared).ping()).resolves.toBeUndefined();
      });

      test("rejects each verb on a missing machine, except remove", async () => {
        const id = machineId();
        expect(await failureKind(driver.freeze(id))).toBe("not_found");
        expect(await failureKind(driver.thaw(id))).toBe("not_found");
        expect(await failureKind(driver.stats(id))).toBe("not_found");
        expect(await failureKind(driver.setNetwork(id, "off"))).toBe("not_found");
        await driver.remove(id);
      });

      test("removes a machine in every state, also twice, and reports its exit once", async () => {
        const exits: [MachineId, MachineExit["reason"]][] = [];
        driver.onExit((id, exit) => exits.push([id, exit.reason]));
        const [running, frozen] = await Promise.all([boot(), boot()]);
        await driver.freeze(frozen.id);
        await Promise.all([driver.remove(running.id), driver.remove(running.id), driver.remove(frozen.id)]);
        for (const { id } of [running, frozen]) {
          expect(exits.filter(([which]) => which === id)).toEqual([[id, "removed"]]);
        }
      });

      test("ends a process with machine_died when its machine is removed", async () => {
        const { id } = await boot();
        const running = await driver.guest(id).spawn({ shell: "sleep 60", onDisconnect: "kill" });
        const ended = failureKind(Promise.all([collect(running), running.exit]));
        await driver.remove(id);
        expect(await ended).toBe("machine_died");
      });

      test("reports the stats of the machine itself", async () => {
        const stats = await driver.stats(shared);
        expect(stats.at).toBeInstanceOf(Date);
        for (const reading of [
          stats.cpuSeconds,
          stats.memoryBytes,
          stats.processes,
          stats.diskBytes,
          stats.egressDenied,
          stats.networkRxBytes,
          stats.networkTxBytes,
        ]) {
          expect(reading).toBeGreaterThanOrEqual(0);
        }
      });

      test("reports facts with the driver's name and the host", async () => {
        const facts = await driver.facts();
        expect(facts.driver).toMatch(driver.name);
        expect(facts.vcpus).toBeGreaterThan(0);
        expect(facts.memoryBytes).toBeGreaterThan(0);
      });
    });

    describe("claim, freeze and thaw", () => {
      const claim = {
        generation: 2,
        resources: { vcpus: 0.5, memoryBytes: 256 * MIB, maxProcesses: 100 },
        network: "off" as const,
        hostname: can.checkpoints ? "claimed" : "first",
        env: { OWNER: "somebody" },
      };

      test("applies limits, network, hostname and environment when a machine is claimed", async () => {
        const spec = await boot();
        await driver.freeze(spec.id);
        await driver.claim(spec.id, claim);
        expect(await out(spec.id, 'printf "$OWNER/$BASE"')).toBe("somebody/");
        const listed = (await driver.list()).find(({ id }) => id === spec.id);
        expect(listed?.state).toBe("running");
        expect(listed?.spec).toEqual({
          ...spec,
          ...claim,
          resources: { ...claim.resources, diskBytes: 1024 * MIB },
        });
        if (can.isolation)
          expect(await out(spec.id, "cat /proc/sys/kernel/hostname")).toBe(`${claim.hostname}\n`);
      });

      test("accepts a repeated claim, and rejects a claim of an earlier generation", async () => {
        const { id } = await boot();
        await driver.claim(id, claim);
        await driver.claim(id, claim);
        expect(await failureKind(driver.claim(id, { ...claim, generation: 1 }))).toBe("stale_generation");
        expect(await out(id, 'printf "$OWNER"')).toBe("somebody");
      });

      test("stops a frozen machine until it is thawed, then continues it", async () => {
        const { id } = await boot();
        const running = await driver
          .guest(id)
          .spawn({ shell: "while :; do echo tick; sleep 0.02; done", onDisconnect: "kill" });
        const ticks = running.output[Symbol.asyncIterator]();
        await ticks.next();
        await driver.freeze(id);
        await driver.freeze(id);
        expect(await stateOf(id)).toBe("frozen");
        const before = (await driver.stats(id)).cpuSeconds;
        await sleep(200);
        expect((await driver.stats(id)).cpuSeconds).toBe(before);
        await driver.thaw(id);
        await driver.thaw(id);
        expect(await stateOf(id)).toBe("running");
        for (let more = 0; more < 5; more += 1) expect((await ticks.next()).done).toBe(false);
        running.close();
        expect(await out(id, "printf alive")).toBe("alive");
      });

      test("delays a request to a frozen machine until the thaw", async () => {
        const { id } = await boot();
        await driver.freeze(id);
        const answer = out(id, "printf thawed");
        await driver.thaw(id);
        expect(await answer).toBe("thawed");
      });

      test("changes limits and network mode while the machine runs", async () => {
        const { id } = await boot();
        const resources = { vcpus: 2, memoryBytes: 768 * MIB, maxProcesses: 300 };
        await driver.setResources(id, resources);
        await driver.setNetwork(id, "open");
        const spec = (await driver.list()).find((machine) => machine.id === id)?.spec;
        expect(spec).toMatchObject({ network: "open", resources: { ...resources, diskBytes: 1024 * MIB } });
      });
    });

    test.skipIf(can.checkpoints)(
      "rejects checkpoint, capture and restore of a machine that cannot be checkpointed, and keeps it running",
      async () => {
        const [{ id }, directory] = [await boot(), await emptyPlace()];
        expect(await failureKind(driver.checkpoint(id, directory))).toBe("not_checkpointable");
        const image = { id: "captured-native", name: "native" };
        expect(await failureKind(driver.captureImage(id, image, { timeoutMs: 60_000 }))).toBe("image_failed");
        expect(await failureKind(driver.restore(specOf(), directory))).toBe("not_restorable");
        expect(await out(id, "printf alive")).toBe("alive");
      },
    );

    describe.runIf(can.checkpoints)("checkpoint and restore", () => {
      async function bootRestored(from: MachineSpec, directory: string, change: Partial<MachineSpec> = {}) {
        const spec = { ...from, id: machineId(), ...change };
        onTestFinished(() => driver.remove(spec.id));
        await driver.restore(spec, directory);
        return spec;
      }

      test("restores a machine with its files, under another id, with the spec's environment", async () => {
        const [spec, directory] = [await boot(), await emptyPlace()];
        await execute(driver, spec.id, "mkdir deep; echo kept > deep/kept; echo gone > gone; mv gone moved");
        const checkpoint = await driver.checkpoint(spec.id, directory);
        expect(checkpoint.files.reduce((sum, { bytes }) => sum + bytes, 0)).toBe(checkpoint.bytes);
        expect(await driver.facts()).toMatchObject({
          runtimeBuild: checkpoint.runtimeBuild,
          cpuClass: checkpoint.cpuClass,
        });
        expect(await stateOf(spec.id)).toBe("frozen");
        await driver.remove(spec.id);
        const { id } = await bootRestored(spec, directory, { env: { BASE: "again" } });
        expect(await out(id, 'cat deep/kept; ls; printf "$BASE"')).toBe("kept\ndeep\nmoved\nagain");
        await execute(driver, id, "rm deep/kept; mv moved gone; echo new > deep/kept");
        expect(await out(id, "cat deep/kept gone; ls")).toBe("new\ngone\ndeep\ngone\n");
      });

      test("continues a checkpointed machine after a thaw", async () => {
        const [spec, directory] = [await boot(), await emptyPlace()];
        await execute(driver, spec.id, "echo before > file");
        await driver.checkpoint(spec.id, directory);
        await driver.thaw(spec.id);
        expect(await stateOf(spec.id)).toBe("running");
        expect(await out(spec.id, "cat file")).toBe("before\n");
      });

      test("checkpoints a frozen machine", async () => {
        const [spec, directory] = [await boot(), await emptyPlace()];
        await driver.freeze(spec.id);
        await driver.checkpoint(spec.id, directory);
        await driver.remove(spec.id);
        await bootRestored(spec, directory);
      });

      test("restores many independent machines from one checkpoint", async () => {
        const [spec, directory] = [await boot(), await emptyPlace()];
        await execute(driver, spec.id, "echo common > common");
        await driver.checkpoint(spec.id, directory);
        await driver.thaw(spec.id);
        const twins = await Promise.all([bootRestored(spec, directory), bootRestored(spec, directory)]);
        await Promise.all(twins.map(({ id }) => execute(driver, id, `echo ${id} > own`)));
        for (const { id } of twins) expect(await out(id, "cat common own")).toBe(`common\n${id}\n`);
        expect(await out(spec.id, "ls")).toBe("common\n");
      });

      test("answers requests while a resumed checkpoint is still written, and saves the earlier state", async () => {
        const [spec, directory] = [await boot(), await emptyPlace()];
        await execute(driver, spec.id, "echo before > file");
        const writing = driver.checkpoint(spec.id, directory, { keepRunning: true });
        let isWritten = false;
        const answers = (async () => {
          const said = new Set<string>();
          const ask = async () => (await contentOf(driver, spec.id, "/workspace/file")).toString();
          while (!isWritten) said.add(await ask().catch(({ kind }) => kind));
          return said;
        })();
        const checkpoint = await writing;
        isWritten = true;
        expect(await stateOf(spec.id)).toBe("running");
        expect(["before\n", "interrupted"]).toEqual(expect.arrayContaining([...(await answers)]));
        expect(checkpoint.files.length).toBeGreaterThan(0);
        await execute(driver, spec.id, "echo after > file");
        const { id } = await bootRestored(spec, directory);
        expect(await out(id, "cat file")).toBe("before\n");
        expect(await out(spec.id, "cat file")).toBe("after\n");
        await driver.checkpoint(spec.id, `${directory}-again`, { keepRunning: true });
        expect(await out(spec.id, "cat file")).toBe("after\n");
      });

      test.runIf(can.isolation)(
        "gives five machines of one checkpoint their own names, machine ids and random numbers",
        async () => {
          const [spec, directory] = [await boot({ hostname: "model" }), await emptyPlace()];
          const { id } = spec;
          await execute(
            driver,
            id,
            `setsid bash -c 'n=0; while :; do n=$((n + 1)); echo $n >> counts; sleep 0.02; done' >/dev/null 2>&1 &
             until [ -s counts ]; do sleep 0.01; done`,
          );
          await driver.checkpoint(id, directory, { keepRunning: true, isDurable: false });
          const names = ["one", "two", "three", "four", "five"];
          const twins = await Promise.all(
            names.map((hostname) => bootRestored(spec, directory, { hostname })),
          );
          await driver.guest(id).writeFile("/workspace/own", Buffer.from("model"), { mode: 0o644, ...ROOTS });
          const facts =
            "cat /proc/sys/kernel/hostname /etc/hostname /etc/machine-id; ls; head -c 16 /dev/urandom | od -An -tx1";
          const said = await Promise.all(
            [spec, ...twins].map(async (twin) => (await out(twin.id, facts)).split("\n")),
          );
          for (const [index, name] of ["model", ...names].entries()) {
            expect(said[index]?.slice(0, 2)).toEqual([name, name]);
            expect(said[index]?.[2]).toMatch(/^[0-9a-f]{32}$/);
            expect(said[index]?.includes("own")).toBe(name === "model");
          }
          for (const what of [2, -2]) expect(new Set(said.map((lines) => lines.at(what))).size).toBe(6);
          for (const twin of [spec, ...twins]) {
            const counts = async () => (await out(twin.id, "cat counts")).trim().split("\n").map(Number);
            const { length } = await counts();
            await expect.poll(async () => (await counts()).length).toBeGreaterThan(length);
            const after = await counts();
            expect(after).toEqual(after.map((_, index) => index + 1));
          }
        },
        60_000,
      );

      test.runIf(can.isolation)(
        "interrupts requests in flight at a checkpoint, and accepts them again",
        async () => {
          const [{ id }, directory] = [await boot(), await emptyPlace()];
          await driver
            .guest(id)
            .startCommand({ id: "cmd_goes_on", shell: "while :; do date; sleep 0.05; done" });
          const running = await driver.guest(id).spawn({ shell: "sleep 60", onDisconnect: "run_on" });
          const ended = failureKind(Promise.all([collect(running), running.exit]));
          await driver.checkpoint(id, directory, { keepRunning: true });
          expect(await ended).toBe("interrupted");
          expect(await driver.guest(id).getCommand("cmd_goes_on")).toMatchObject({ status: "running" });
          expect(await out(id, "pgrep -c -x sleep || true")).not.toBe("0\n");
        },
      );

      test("keeps the machine running and leaves no files when a checkpoint fails", async () => {
        const { id } = await boot();
        await execute(driver, id, "echo here > here");
        const directory = await emptyPlace();
        const blocked = join(directory, "not-there", "\0");
        await expect(driver.checkpoint(id, blocked)).rejects.toThrow(/./);
        expect(await out(id, "cat here")).toBe("here\n");
        expect(await readdir(join(directory, ".."))).toEqual([]);
        await driver.checkpoint(id, directory);
      });

      test("rejects an incomplete checkpoint, and leaves no machine", async () => {
        const spec = specOf();
        expect(await failureKind(driver.restore(spec, await emptyPlace()))).toBe("not_restorable");
        expect(await stateOf(spec.id)).toBeUndefined();
      });

      test.runIf(can.processesContinue)(
        "continues processes after a restore with their memory, open files and pipes",
        async () => {
          const [spec, directory] = [await boot(), await emptyPlace()];
          const { id } = spec;
          // The script counts lines from a pipe, in a variable and in an unlinked file.
          await execute(
            driver,
            id,
            `mkfifo in; setsid bash -c 'n=0; exec 3<>in 4>/tmp/unlinked 5</tmp/unlinked; rm /tmp/unlinked
               while read -r line <&3; do n=$((n + 1)); echo "$n $line" >&4; echo "$n" > count
                 if [ "$line" = show ]; then cat <&5 > shown; fi; done' >/dev/null 2>&1 &
             setsid bash -c 'i=0; while :; do i=$((i + 1)); echo $i >> ticks; sleep 0.01; done' >/dev/null 2>&1 &
             echo one > in; until [ -s count ] && [ -s ticks ]; do sleep 0.01; done`,
          );
          await driver.checkpoint(id, directory);
          await driver.remove(id);
          const again = await bootRestored(spec, directory);
          await execute(
            driver,
            again.id,
            "echo show > in; until [ -s shown ]; do sleep 0.01; done; sleep 0.3",
          );
          expect(await out(again.id, "cat shown count")).toBe("1 one\n2 show\n2\n");
          const ticks = (await out(again.id, "cat ticks")).trim().split("\n").map(Number);
          expect(ticks).toEqual(Array.from(ticks, (_, index) => index + 1));
          expect(ticks.length).toBeGreaterThan(5);
        },
      );

      test.runIf(can.processesContinue)("continues a terminal after a restore, with its output", async () => {
        const [spec, directory] = [await boot(), await emptyPlace()];
        const shell = "echo before; read line; echo after $line; stty size; exit 4";
        await driver.guest(spec.id).startCommand({ id: "pty_kept", shell, terminal: { cols: 80, rows: 24 } });
        await driver.guest(spec.id).followCommand("pty_kept", 0).next();
        await driver.checkpoint(spec.id, directory);
        await driver.remove(spec.id);
        const guest = driver.guest((await bootRestored(spec, directory)).id);
        await guest.resizeCommand("pty_kept", { cols: 70, rows: 20 });
        await guest.writeCommandStdin("pty_kept", Buffer.from("typed\n"), false);
        const readExitCode = async () => (await guest.getCommand("pty_kept")).exitCode;
        await expect.poll(readExitCode, { timeout: 10_000 }).toBe(4);
        const { chunks } = await guest.commandLogs("pty_kept", 0, MIB);
        const text = Buffer.concat(chunks.map(({ data }) => data)).toString();
        expect(text).toBe("before\r\ntyped\r\nafter typed\r\n20 70\r\n");
      });

      test.runIf(can.processesContinue)(
        "keeps files and processes over twenty checkpoints and restores",
        async () => {
          let spec = await boot();
          await execute(
            driver,
            spec.id,
            `setsid bash -c 'i=0; while :; do i=$((i + 1)); echo $i > new; mv new count; sleep 0.01; done' >/dev/null 2>&1 &`,
          );
          let last = 0;
          for (let round = 1; round <= 20; round += 1) {
            const directory = await emptyPlace();
            await execute(
              driver,
              spec.id,
              `echo ${round} >> rounds; touch a; mv a b; rm b; mkdir a; rmdir a`,
            );
            await driver.checkpoint(spec.id, directory);
            await driver.remove(spec.id);
            spec = await bootRestored(spec, directory);
            const count = Number(await out(spec.id, "sleep 0.05; cat count"));
            expect(count).toBeGreaterThan(last);
            last = count;
          }
          expect(await out(spec.id, "cat rounds")).toBe(
            Array.from({ length: 20 }, (_, index) => `${index + 1}\n`).join(""),
          );
        },
        120_000,
      );
    });

    describe("volumes", () => {
      const inVolume = (shell: string) => ({ shell, cwd: "/persist" });

      async function newVolume(): Promise<VolumeSpec> {
        return { directory: await emptyPlace(), sizeBytes: 64 * MIB, isNew: true };
      }

      test("shows the files of a volume to its next machine, and to no other", async () => {
        const volume = await newVolume();
        const first = await boot({ volume });
        const other = await boot();
        expect(await out(first.id, inVolume("ls; mkdir deep; echo kept > deep/file"))).toBe("");
        await driver.remove(first.id);
        expect(await out(other.id, inVolume("ls"))).toBe("");
        const second = await boot({ volume: { ...volume, isNew: false } });
        expect(await out(second.id, inVolume("cat deep/file"))).toBe("kept\n");
        expect((await driver.list()).find(({ id }) => id === second.id)?.spec?.volume?.isNew).toBe(false);
      });

      test("keeps the files of a volume that is created a second time", async () => {
        const volume = await newVolume();
        const { id } = await boot({ volume });
        await execute(driver, id, inVolume("echo kept > file"));
        await driver.remove(id);
        const again = await boot({ volume });
        expect(await out(again.id, inVolume("cat file"))).toBe("kept\n");
      });

      test("writes files to a volume with the file calls", async () => {
        const { id } = await boot({ volume: await newVolume() });
        const roots = { roots: ["/persist"] };
        await driver.guest(id).writeFile("/persist/a/b", Buffer.from("text"), { mode: 0o600, ...roots });
        await driver.guest(id).move("/persist/a/b", "/persist/c", { overwrite: false, ...roots });
        expect((await contentOf(driver, id, "/persist/c")).toString()).toBe("text");
        await driver.guest(id).remove("/persist/c", roots);
        expect(await driver.guest(id).stat("/persist/c")).toBeUndefined();
      });

      test("reports a missing volume that must exist, and leaves no machine", async () => {
        const volume = { ...(await newVolume()), isNew: false };
        const spec = specOf({ volume });
        expect(await failureKind(driver.create(spec))).toBe("volume_missing");
        expect(await stateOf(spec.id)).toBeUndefined();
        expect(await driver.volumeUsage(volume.directory)).toBe(0);
      });

      test("lets one machine at a time use a volume, until that machine is removed", async () => {
        const volume = await newVolume();
        const holder = await boot({ volume });
        const late = specOf({ volume });
        expect(await failureKind(driver.create(late))).toBe("volume_in_use");
        expect(await stateOf(late.id)).toBeUndefined();
        expect(await out(holder.id, inVolume("echo unharmed > file; cat file"))).toBe("unharmed\n");
        await driver.remove(holder.id);
        await boot({ volume });
      });

      test("measures the usage of a volume while attached and afterwards", async () => {
        const volume = await newVolume();
        const { id } = await boot({ volume });
        const empty = await driver.volumeUsage(volume.directory);
        await execute(driver, id, inVolume("head -c 8388608 /dev/urandom > file"));
        for (const isAttached of [true, false]) {
          if (!isAttached) await driver.remove(id);
          const used = await driver.volumeUsage(volume.directory);
          expect(used).toBeGreaterThanOrEqual(8 * MIB);
          expect(used).toBeLessThan(9 * MIB + empty);
        }
      });

      test.runIf(can.checkpoints)("restores a machine with the current content of its volume", async () => {
        const [directory, volume] = [await emptyPlace(), await newVolume()];
        const spec = await boot({ volume });
        await execute(driver, spec.id, inVolume("echo before > file"));
        await driver.checkpoint(spec.id, directory);
        expect((await driver.list()).find(({ id }) => id === spec.id)?.spec?.volume).toEqual(volume);
        await driver.remove(spec.id);
        const again = { ...spec, id: machineId(), volume: { ...volume, isNew: false } };
        onTestFinished(() => driver.remove(again.id));
        await driver.restore(again, directory);
        expect(await out(again.id, inVolume("cat file; echo after > file; cat file"))).toBe(
          "before\nafter\n",
        );
      });

      test.runIf(can.isolation)(
        "reports a full volume at its size, and keeps the machine's root disk writable",
        async () => {
          const { id } = await boot({ volume: await newVolume() });
          const filled = await execute(driver, id, inVolume("cat /dev/zero > file; stat -c %s file"));
          expect(filled.stderr.toString()).toMatch(/No space left/);
          expect(Number(filled.stdout)).toBeGreaterThanOrEqual(64 * MIB);
          expect(Number(filled.stdout)).toBeLessThan(96 * MIB);
          expect(await out(id, "echo room > file; cat file")).toBe("room\n");
          await execute(driver, id, inVolume("rm file; echo small > file"));
          expect(await out(id, inVolume("cat file"))).toBe("small\n");
        },
      );

      test.runIf(can.processesContinue)(
        "continues processes with their open files on the volume, also files that were moved",
        async () => {
          const [directory, volume] = [await emptyPlace(), await newVolume()];
          const spec = await boot({ volume });
          await execute(
            driver,
            spec.id,
            inVolume(`setsid bash -c 'exec 3>>ticks; echo new > other; mv ticks moved
                i=0; while :; do i=$((i + 1)); echo $i >&3; sleep 0.01; done' >/dev/null 2>&1 &
              until [ -s moved ]; do sleep 0.01; done`),
          );
          await driver.checkpoint(spec.id, directory);
          await driver.remove(spec.id);
          const again = { ...spec, id: machineId(), volume: { ...volume, isNew: false } };
          onTestFinished(() => driver.remove(again.id));
          await driver.restore(again, directory);
          const ticks = async () =>
            (await out(again.id, inVolume("cat moved"))).trim().split("\n").map(Number);
          const before = (await ticks()).length;
          await execute(driver, again.id, "sleep 0.3");
          const after = await ticks();
          expect(after.length).toBeGreaterThan(before);
          expect(after).toEqual(after.map((_, index) => index + 1));
        },
      );
    });

    describe("exec", () => {
      test("returns stdout, stderr and the exit code separately", async () => {
        const { stdout, stderr, exit } = await execute(driver, shared, "echo out; echo err >&2; exit 7");
        expect([stdout.toString(), stderr.toString()]).toEqual(["out\n", "err\n"]);
        expect(exit).toEqual({
          code: 7,
          signal: null,
          timedOut: false,
          outOfMemory: false,
          durationUs: expect.any(Number),
        });
        expect(exit.durationUs).toBeGreaterThan(0);
      });

      test("passes an argv to the program unchanged, without a shell", async () => {
        expect(await out(shared, { argv: ["printf", "%s", "$HOME; `id`"] })).toBe("$HOME; `id`");
      });

      test("starts in /workspace unless cwd is set", async () => {
        expect(await out(shared, "pwd")).toMatch(/\/workspace\n$/);
        expect(await out(shared, { shell: "pwd", cwd: "/tmp" })).toMatch(/\/tmp\n$/);
      });

      test("merges a process's environment over the machine's", async () => {
        const shell = 'printf "%s " "$BASE" "$OWN" "$HOME"';
        expect(await out(shared, { shell, env: { OWN: "own" } })).toMatch(/^base own \/root $/);
        expect(await out(shared, { shell, env: { BASE: "mine" } })).toMatch(/^mine {2}\/root $/);
      });

      test("delivers all of stdin, and its end of file", async () => {
        expect(await out(shared, "cat", "to the end")).toBe("to the end");
      });

      test("returns output of arbitrary bytes unchanged", async () => {
        const bytes = Buffer.from(Array.from({ length: 256 }, (_, index) => index));
        const { stdout } = await execute(driver, shared, "cat", bytes);
        expect(stdout.equals(bytes)).toBe(true);
      });

      test("returns 100 MB of output", async () => {
        const running = await driver
          .guest(shared)
          .spawn({ shell: "head -c 100000000 /dev/zero", onDisconnect: "kill" });
        running.endStdin();
        let sizeBytes = 0;
        for await (const { data } of running.output) sizeBytes += data.length;
        expect(sizeBytes).toBe(100_000_000);
        expect(await running.exit).toMatchObject({ code: 0 });
      }, 60_000);

      test("sends a signal to the process group, and reports it", async () => {
        const running = await driver
          .guest(shared)
          .spawn({ shell: "echo up; sleep 60 & wait", onDisconnect: "kill" });
        const output = collect(running);
        running.signal(15);
        await output;
        expect(await running.exit).toMatchObject({ code: null, signal: 15, timedOut: false });
      });

      test("kills a process with its children at its timeout, and reports it", async () => {
        const { exit } = await execute(driver, shared, { shell: "sleep 61 & sleep 60", timeoutMs: 300 });
        expect(exit).toMatchObject({ code: null, signal: 9, timedOut: true });
      });

      test("reports the exit of a process whose child still runs in the background", async () => {
        const { stdout, exit } = await execute(driver, shared, "sleep 60 & echo $!");
        expect(exit.code).toBe(0);
        expect((await execute(driver, shared, `kill ${stdout.toString()}`)).exit.code).toBe(0);
      });

      test("reports why a process cannot start", async () => {
        const spawn = (spec: Partial<SpawnSpec>) =>
          failureKind(driver.guest(shared).spawn({ onDisconnect: "kill", ...spec }));
        expect(await spawn({ argv: ["/no/such/program"] })).toBe("exec_failed");
        expect(await spawn({ argv: ["true"], cwd: "/no/such/directory" })).toBe("path_not_found");
        expect(await spawn({ argv: ["true"], user: "no-such-user" })).toBe("exec_failed");
      });

      test.runIf(can.isolation)("runs a process as root, or as the named user", async () => {
        expect(await out(shared, { argv: ["id", "-un"] })).toBe("root\n");
        expect(await out(shared, { argv: ["id", "-u"], user: "nobody", cwd: "/" })).toBe("65534\n");
        expect(await out(shared, { argv: ["id", "-u"], user: "1234", cwd: "/" })).toBe("1234\n");
        expect(await out(shared, { argv: ["id"], user: "1234:100", cwd: "/" })).toMatch(
          /^uid=1234 gid=100(\(users\))?( groups=100(\(users\))?)?\n$/,
        );
      });

      test("kills or keeps a process when its caller disconnects, as requested", async () => {
        const { id } = await boot();
        for (const onDisconnect of ["kill", "run_on"] as const) {
          const running = await driver
            .guest(id)
            .spawn({ shell: `sleep 0.3; echo > ${onDisconnect}`, cwd: "/tmp", onDisconnect });
          running.close();
        }
        await expect.poll(() => driver.guest(id).stat("/tmp/run_on"), { timeout: 10_000 }).toBeDefined();
        expect(await driver.guest(id).stat("/tmp/kill")).toBeUndefined();
      });
    });

    describe("background commands", () => {
      const text = (chunks: { data: Buffer }[]) => Buffer.concat(chunks.map(({ data }) => data)).toString();

      async function collectOutput(id: MachineId, command: string, offset = 0) {
        const chunks: CommandChunk[] = [];
        const follow = driver.guest(id).followCommand(command, offset);
        for (;;) {
          const step = await follow.next();
          if (step.done === true) return { chunks, last: step.value };
          chunks.push(step.value);
        }
      }

      test("returns a command's output by offset, during and after the run, without the connection that started it", async () => {
        const guest = driver.guest(shared);
        const shell = "echo one; echo two >&2; read line; echo $line; exit 3";
        const { pid } = await guest.startCommand({ id: "cmd_a", tag: "first", shell, env: { A: "a" } });
        expect(await guest.getCommand("cmd_a")).toMatchObject({
          id: "cmd_a",
          tag: "first",
          text: shell,
          status: "running",
          pid,
          exitCode: null,
          endedAt: null,
          startedAt: expect.any(Date),
        });
        await expect.poll(async () => (await guest.getCommand("cmd_a")).outputBytes).toBe(8);
        const follow = collectOutput(shared, "cmd_a", 4);
        await guest.writeCommandStdin("cmd_a", Buffer.from("three\n"), false);
        const { chunks, last } = await follow;
        expect(text(chunks)).toBe("two\nthree\n");
        expect(chunks.map(({ stream, offset }) => [stream, offset])).toEqual([
          ["stderr", 4],
          ["stdout", 8],
        ]);
        expect(last).toMatchObject({ status: "exited", exitCode: 3, signal: null, outputBytes: 14 });
        expect(last.endedAt).toBeInstanceOf(Date);
        const { chunks: some, nextOffset } = await guest.commandLogs("cmd_a", 1, 4);
        expect([text(some), some[0]?.offset, nextOffset]).toEqual(["ne\nt", 1, 5]);
        expect((await guest.listCommands()).map(({ id }) => id)).toContain("cmd_a");
      });

      test("sends SIGTERM to a killed command, lets it exit, and marks it killed", async () => {
        const guest = driver.guest(shared);
        const shell = "trap 'echo bye; exit 7' TERM; echo up; sleep 60 & wait";
        await guest.startCommand({ id: "cmd_trap", shell });
        await guest.followCommand("cmd_trap", 0).next();
        expect(await guest.killCommand("cmd_trap")).toMatchObject({ id: "cmd_trap" });
        const { chunks, last } = await collectOutput(shared, "cmd_trap");
        expect([text(chunks), last.status, last.exitCode]).toEqual(["up\nbye\n", "killed", 7]);
        expect(await guest.killCommand("cmd_trap")).toMatchObject({ status: "killed", exitCode: 7 });
      });

      test("signals the whole process group of a command, and ignores a signal to an ended command", async () => {
        const guest = driver.guest(shared);
        const shell = "trap 'echo heard; exit 3' USR1; echo up; sleep 60 & wait";
        await guest.startCommand({ id: "cmd_signal", shell });
        await guest.followCommand("cmd_signal", 0).next();
        await guest.signalCommand("cmd_signal", constants.signals.SIGUSR1);
        const { chunks, last } = await collectOutput(shared, "cmd_signal");
        expect([text(chunks), last.status, last.exitCode]).toEqual(["up\nheard\n", "exited", 3]);
        await guest.signalCommand("cmd_signal", constants.signals.SIGKILL);
        expect(await failureKind(guest.signalCommand("cmd_no", constants.signals.SIGKILL))).toBe("not_found");
      });

      test("releases the reader of a silent command when the reader aborts", async () => {
        const guest = driver.guest(shared);
        await guest.startCommand({ id: "cmd_silent", argv: ["sleep", "60"] });
        const reader = new AbortController();
        const next = guest.followCommand("cmd_silent", 0, reader.signal).next();
        next.catch(() => {});
        reader.abort(new Error("gone"));
        await expect(next).rejects.toThrow("gone");
        await guest.killCommand("cmd_silent");
      });

      test("returns a separate error for each failure of a command call", async () => {
        const guest = driver.guest(shared);
        await guest.startCommand({ id: "cmd_done", argv: ["true"] });
        await collectOutput(shared, "cmd_done");
        expect(await failureKind(guest.startCommand({ id: "cmd_done", argv: ["true"] }))).toBe("exists");
        expect(await failureKind(guest.startCommand({ id: "cmd_no", argv: ["/no/such"] }))).toBe(
          "exec_failed",
        );
        expect(await failureKind(guest.getCommand("cmd_no"))).toBe("not_found");
        expect(await failureKind(guest.killCommand("cmd_no"))).toBe("not_found");
        expect(await failureKind(guest.commandLogs("cmd_no", 0, 1))).toBe("not_found");
        expect(await failureKind(guest.followCommand("cmd_no", 0).next())).toBe("not_found");
        expect(await failureKind(guest.writeCommandStdin("cmd_done", Buffer.from("x"), false))).toBe(
          "not_running",
        );
      });

      test("ends a follower with an error when the machine dies", async () => {
        const { id } = await boot();
        await driver.guest(id).startCommand({ id: "cmd_x", shell: "echo up; sleep 60" });
        const follow = driver.guest(id).followCommand("cmd_x", 0);
        await follow.next();
        const ended = failureKind(follow.next());
        await driver.remove(id);
        expect(await ended).toBe("machine_died");
      });
    });

    describe("terminals", () => {
      /** Reads a terminal's output and writes its input. */
      class Screen {
        text = "";
        last: CommandRecord | undefined;
        readonly #guest: Guest;
        readonly #id: string;
        readonly #reading: Promise<void>;
        readonly #reader = new AbortController();

        private constructor(guest: Guest, id: string) {
          this.#guest = guest;
          this.#id = id;
          this.#reading = this.#read().catch(() => {});
        }

        static async open(machine: MachineId, shell: string, size = { cols: 80, rows: 24 }): Promise<Screen> {
          const [guest, id] = [driver.guest(machine), `pty_${randomBytes(6).toString("hex")}`];
          await guest.startCommand({ id, shell, env: { TERM: "xterm", PS1: "$ " }, terminal: size });
          onTestFinished(async () => {
            await driver.guest(machine).killCommand(id);
            screen.#reader.abort();
          });
          const screen = new Screen(guest, id);
          return screen;
        }

        async #read(): Promise<void> {
          const output = this.#guest.followCommand(this.#id, 0, this.#reader.signal);
          for (;;) {
            const step = await output.next();
            if (step.done === true) return void (this.last = step.value);
            expect(step.value.stream).toBe("stdout");
            this.text += step.value.data.toString();
          }
        }

        type(text: string): Promise<void> {
          return this.#guest.writeCommandStdin(this.#id, Buffer.from(text), false);
        }

        resize(cols: number, rows: number): Promise<void> {
          return this.#guest.resizeCommand(this.#id, { cols, rows });
        }

        record(): Promise<CommandRecord> {
          return this.#guest.getCommand(this.#id);
        }

        kill(): Promise<CommandRecord> {
          return this.#guest.killCommand(this.#id);
        }

        async shows(text: string): Promise<void> {
          await expect.poll(() => this.text, { timeout: 10_000 }).toContain(text);
        }

        async waitForEnd(): Promise<CommandRecord> {
          await this.#reading;
          return this.last ?? expect.unreachable("it has no end");
        }
      }

      const bash = "exec bash --norc --noprofile -i";

      test("gives a program its terminal's size and later sizes, and returns the program's exit code", async () => {
        const screen = await Screen.open(
          shared,
          "stty size; trap 'stty size' WINCH; read line; read line; exit 3",
          {
            cols: 111,
            rows: 33,
          },
        );
        await screen.shows("33 111\r\n");
        expect((await screen.record()).terminal).toEqual({ cols: 111, rows: 33 });
        await screen.resize(100, 30);
        await screen.type("\n");
        await screen.shows("30 100\r\n");
        await screen.type("\n\n");
        expect(await screen.waitForEnd()).toMatchObject({
          status: "exited",
          exitCode: 3,
          terminal: { cols: 100, rows: 30 },
        });
      });

      test("ends the foreground program on Ctrl-C, not the shell", async () => {
        const screen = await Screen.open(shared, bash);
        await screen.type("sh -c 'echo u\"\"p; exec sleep 60'\n");
        await screen.shows("up\r\n");
        await screen.type("\x03");
        await screen.type("echo st''ill here; exit 5\n");
        await screen.shows("still here");
        expect(await screen.waitForEnd()).toMatchObject({ exitCode: 5, signal: null });
      });

      test("passes arbitrary bytes in both directions", async () => {
        const screen = await Screen.open(shared, "stty raw -echo; echo ready; head -c 12; exit");
        await screen.shows("ready");
        await screen.type("grüße\0\x7f\x03\r\n");
        await screen.waitForEnd();
        expect(screen.text).toBe("ready\ngrüße\0\x7f\x03\r\n");
      });

      test("keeps the last output of a program that ends", async () => {
        const screen = await Screen.open(shared, "seq 1 20000");
        await screen.waitForEnd();
        expect(screen.text.trimEnd().split("\r\n")).toHaveLength(20_000);
      });

      test("blocks a terminal's program on its slowest reader, and continues it without readers", async () => {
        const guest = driver.guest(shared);
        const terminal = { cols: 80, rows: 24 };
        await guest.startCommand({ id: "pty_flood", shell: "yes", terminal });
        onTestFinished(async () => void (await driver.guest(shared).killCommand("pty_flood")));
        const reader = new AbortController();
        const output = guest.followCommand("pty_flood", 0, reader.signal);
        await output.next();
        const readOutputBytes = async () => (await guest.getCommand("pty_flood")).outputBytes;
        let before = -1;
        await expect
          .poll(async () => [before, (before = await readOutputBytes())], { interval: 300, timeout: 20_000 })
          .toSatisfy(([earlier, now]) => earlier === now);
        expect(before).toBeLessThan(4 * MIB);
        reader.abort();
        await output.return(undefined as never);
        await expect.poll(readOutputBytes, { timeout: 20_000 }).toBeGreaterThan(before);
      });

      test("sends a hangup to all programs of a killed terminal", async () => {
        const screen = await Screen.open(shared, bash);
        await screen.type("sleep 6161\n");
        const sleeping = () => out(shared, "pgrep -f 'sleep 616[1]' > /dev/null && echo some || echo none");
        // The terminal shows input before it runs. A hangup does not reach a program that is not in the
        // foreground yet.
        await expect.poll(sleeping).toBe("some\n");
        await screen.kill();
        expect(await screen.waitForEnd()).toMatchObject({ status: "killed" });
        await expect.poll(sleeping).toBe("none\n");
      });

      test("resizes only a running command with a terminal", async () => {
        const guest = driver.guest(shared);
        const size = { cols: 1, rows: 1 };
        await guest.startCommand({ id: "cmd_plain", argv: ["true"] });
        expect((await guest.getCommand("cmd_plain")).terminal).toBeNull();
        expect(await failureKind(guest.resizeCommand("cmd_plain", size))).toBe("guest_protocol");
        expect(await failureKind(guest.resizeCommand("cmd_none", size))).toBe("not_found");
        const screen = await Screen.open(shared, "true");
        await screen.waitForEnd();
        expect(await failureKind(screen.resize(1, 1))).toBe("not_running");
      });

      test("rejects a terminal beyond the 16th", async () => {
        const { id } = await boot();
        const terminal = { cols: 80, rows: 24 };
        const open = (index: number) =>
          driver.guest(id).startCommand({ id: `pty_${index}`, argv: ["sleep", "60"], terminal });
        const kinds = await Promise.all(Array.from({ length: 18 }, (_, index) => failureKind(open(index))));
        expect(kinds.filter((kind) => kind === "none")).toHaveLength(16);
        expect(kinds.filter((kind) => kind === "too_many_processes")).toHaveLength(2);
      }, 30_000);
    });

    describe("files", () => {
      const write = (path: string, text: string) =>
        driver.guest(shared).writeFile(path, Buffer.from(text), { mode: 0o640, ...ROOTS });

      test("reads back a written file, with its mode and size", async () => {
        expect(await write("/workspace/deep/er/file", "content")).toEqual({ sizeBytes: 7 });
        expect((await contentOf(driver, shared, "/workspace/deep/er/file")).toString()).toBe("content");
        expect(await driver.guest(shared).stat("/workspace/deep/er/file")).toEqual({
          isDir: false,
          sizeBytes: 7,
          mode: 0o640,
          modifiedAt: expect.any(Date),
          uid: expect.any(Number),
          gid: expect.any(Number),
          linkTarget: null,
        });
      });

      test("lists a directory page by page, and removes it with its contents", async () => {
        const guest = driver.guest(shared);
        for (const name of ["b", "a", "d/e/f"]) await write(`/workspace/paged/${name}`, name);
        await out(shared, "ln -s nothing paged/c");
        const page = await guest.list("/workspace/paged", { limit: 2, after: "a" });
        expect(page.map(({ name, linkTarget }) => [name, linkTarget])).toEqual([
          ["b", null],
          ["c", "nothing"],
        ]);
        const removal = guest.remove("/workspace/paged", ROOTS);
        expect(await failureKind(removal)).toBe("is_directory");
        await guest.remove("/workspace/paged", { ...ROOTS, recursive: true });
        expect(await guest.stat("/workspace/paged")).toBeUndefined();
      });

      test("shows written files to a process, and reads the files of a process", async () => {
        await write("/workspace/shared", "from outside");
        expect(await out(shared, "cat shared; printf inside > from-inside")).toBe("from outside");
        expect((await contentOf(driver, shared, "/workspace/from-inside")).toString()).toBe("inside");
      });

      test("writes and reads 16 MiB unchanged", async () => {
        const bytes = randomBytes(16 * MIB);
        async function* pieces() {
          for (let at = 0; at < bytes.length; at += 100_000) yield bytes.subarray(at, at + 100_000);
        }
        const options = { mode: 0o644, ...ROOTS };
        expect(await driver.guest(shared).writeFile("/tmp/large", pieces(), options)).toEqual({
          sizeBytes: bytes.length,
        });
        expect((await contentOf(driver, shared, "/tmp/large")).equals(bytes)).toBe(true);
      });

      test("reads a requested range of a file, and no more", async () => {
        await write("/workspace/long", "0123456789");
        const piece = (offset: number, length: number) =>
          contentOf(driver, shared, "/workspace/long", { offset, length });
        expect((await piece(0, 3)).toString()).toBe("012");
        expect((await piece(4, 2)).toString()).toBe("45");
        expect((await piece(8, 100)).toString()).toBe("89");
        expect((await piece(5, 0)).toString()).toBe("");
        expect((await piece(10, 1)).toString()).toBe("");
      });

      test("makes and lists a directory, and moves and removes its files", async () => {
        const guest = driver.guest(shared);
        await guest.mkdir("/workspace/box", { mode: 0o700, parents: false, ...ROOTS });
        expect(
          await failureKind(guest.mkdir("/workspace/box", { mode: 0o700, parents: false, ...ROOTS })),
        ).toBe("exists");
        await guest.mkdir("/workspace/box/a/b", { mode: 0o755, parents: true, ...ROOTS });
        await write("/workspace/box/one", "1");
        await guest.move("/workspace/box/one", "/workspace/box/two", { overwrite: false, ...ROOTS });
        await write("/workspace/box/one", "new");
        const refused = guest.move("/workspace/box/one", "/workspace/box/two", {
          overwrite: false,
          ...ROOTS,
        });
        expect(await failureKind(refused)).toBe("exists");
        await guest.move("/workspace/box/one", "/workspace/box/two", { overwrite: true, ...ROOTS });
        const entries = await guest.list("/workspace/box");
        expect(entries.map(({ name, isDir }) => [name, isDir]).toSorted(byText)).toEqual([
          ["a", true],
          ["two", false],
        ]);
        await guest.remove("/workspace/box/two", ROOTS);
        expect(await guest.stat("/workspace/box/two")).toBeUndefined();
      });

      test("makes missing parents when a file is moved", async () => {
        const guest = driver.guest(shared);
        await write("/workspace/moved", "1");
        await guest.move("/workspace/moved", "/workspace/new/deep/moved", { overwrite: false, ...ROOTS });
        expect(await guest.stat("/workspace/new/deep/moved")).toMatchObject({ sizeBytes: 1 });
        expect(await guest.stat("/workspace/moved")).toBeUndefined();
        const missing = guest.move("/workspace/none", "/workspace/other/none", {
          overwrite: false,
          ...ROOTS,
        });
        expect(await failureKind(missing)).toBe("path_not_found");
        expect(await guest.stat("/workspace/other")).toBeUndefined();
      });

      test("returns a separate error for each failure of a file call", async () => {
        const guest = driver.guest(shared);
        await write("/workspace/file", "0123456789");
        expect(await failureKind(guest.readFile("/workspace/none"))).toBe("path_not_found");
        expect(await failureKind(guest.readFile("/workspace"))).toBe("is_directory");
        expect(await failureKind(guest.readFile("/workspace/file", { maxBytes: 5 }))).toBe("too_large");
        expect(await failureKind(guest.list("/workspace/file"))).toBe("not_directory");
        expect(await failureKind(guest.list("/workspace/none"))).toBe("path_not_found");
        expect(await failureKind(guest.remove("/workspace", { roots: ["/"] }))).toBe("is_directory");
        expect(await failureKind(guest.remove("/workspace/none", ROOTS))).toBe("path_not_found");
        expect(await failureKind(write("/etc/outside", ""))).toBe("not_permitted");
        expect(await failureKind(write("/workspace/../etc/outside", ""))).toBe("not_permitted");
        expect(await failureKind(write("relative", ""))).toBe("invalid_path");
        expect(await failureKind(write("/workspace/nul\0", ""))).toBe("invalid_path");
        expect(await failureKind(write(`/workspace/${"x".repeat(256)}`, ""))).toBe("invalid_path");
        expect(await failureKind(write(`/workspace/${"x".repeat(255)}`, "longest"))).toBe("none");
      });

      test("rejects a write that a symlink leads out of the writable directories", async () => {
        await execute(driver, shared, "ln -sfn /etc escape; ln -sf /etc/escaped link");
        expect(await failureKind(write("/workspace/escape/file", ""))).toBe("not_permitted");
        expect(await failureKind(write("/workspace/link", ""))).toBe("not_permitted");
      });
    });

    describe("watching a directory", () => {
      /** Watches the directory while `work` runs. Returns the changes up to the first one that `last` accepts. */
      async function collectChanges(
        directory: string,
        recursive: boolean,
        work: () => Promise<unknown>,
        last: (change: FileChange) => boolean,
      ): Promise<FileChange[]> {
        const gone = new AbortController();
        const changes = await driver.guest(shared).watch(directory, {
          recursive,
          signal: AbortSignal.any([gone.signal, AbortSignal.timeout(20_000)]),
        });
        const done = work();
        const all: FileChange[] = [];
        for await (const change of changes) {
          all.push(change);
          if (last(change)) break;
        }
        await done;
        gone.abort();
        return all;
      }
      const isAt = (path: string) => (change: FileChange) => "path" in change && change.path === path;

      test("reports created, changed, moved and deleted entries in order, by path", async () => {
        await out(shared, "mkdir -p seen && : > seen/old");
        const one = "/workspace/seen/one";
        const two = "/workspace/seen/two";
        const steps = async () => {
          // Runs in separate steps, because quick changes of one file are merged into one change.
          for (const step of [
            "echo 1 > one",
            "echo 2 >> one",
            "mv one two",
            "mkdir sub",
            "rm two",
            ": > last",
          ]) {
            await out(shared, `cd seen && ${step}`);
            await sleep(100);
          }
        };
        const all = await collectChanges("/workspace/seen", false, steps, isAt("/workspace/seen/last"));
        expect(all).toEqual([
          { kind: "created", path: one, isDir: false },
          { kind: "modified", path: one, isDir: false },
          { kind: "moved", path: two, from: one, isDir: false },
          { kind: "created", path: "/workspace/seen/sub", isDir: true },
          { kind: "deleted", path: two, isDir: false },
          { kind: "created", path: "/workspace/seen/last", isDir: false },
        ]);
      });

      test("follows new, moved and deleted directories in a recursive watch only", async () => {
        await out(shared, "mkdir -p tree/a/b");
        const steps = async () => {
          const each = [
            "echo 1 > a/b/f",
            "mkdir -p n/e/w && echo 1 > n/e/w/g",
            "mv a c",
            "echo 2 > c/b/f",
            "rm -r n",
            ": > last",
          ];
          for (const step of each) {
            await out(shared, `cd tree && ${step}`);
            await sleep(100);
          }
        };
        const all = await collectChanges("/workspace/tree", true, steps, isAt("/workspace/tree/last"));
        const lines = all.map((change) =>
          "path" in change ? `${change.kind} ${change.path.slice(16)}` : change.kind,
        );
        for (const line of [
          "created a/b/f",
          "created n",
          "created n/e/w",
          "created n/e/w/g",
          "moved c",
          "modified c/b/f",
        ])
          expect(lines).toContain(line);
        for (const line of ["deleted n/e/w/g", "deleted n/e/w", "deleted n"]) expect(lines).toContain(line);
        expect(lines.filter((line) => line === "created n/e/w/g")).toHaveLength(1);

        await out(shared, "mkdir -p flat/below");
        const flat = await collectChanges(
          "/workspace/flat",
          false,
          () => out(shared, "echo 1 > flat/below/f; : > flat/last"),
          isAt("/workspace/flat/last"),
        );
        expect(flat.filter(isAt("/workspace/flat/below/f"))).toEqual([]);
      });

      test("reports a file call as the change of its target, without temporary files", async () => {
        await out(shared, "mkdir -p calls");
        const steps = async () => {
          const guest = driver.guest(shared);
          for (const content of ["one", "another"]) {
            await guest.writeFile("/workspace/calls/f", Buffer.from(content), { mode: 0o644, ...ROOTS });
            await sleep(100);
          }
          await guest.remove("/workspace/calls/f", ROOTS);
        };
        const all = await collectChanges("/workspace/calls", false, steps, ({ kind }) => kind === "deleted");
        expect(all.map(({ kind }) => kind)).toEqual(["created", "modified", "deleted"]);
      });

      test("ends a watch when its directory is deleted or its reader aborts, and rejects a path that is not a directory", async () => {
        await out(shared, "mkdir -p ends && : > ends/f");
        const all = await collectChanges(
          "/workspace/ends",
          true,
          () => out(shared, "rm -r ends"),
          () => false,
        );
        expect(all).toEqual([{ kind: "deleted", path: "/workspace/ends/f", isDir: false }]);

        const gone = new AbortController();
        const silent = await driver
          .guest(shared)
          .watch("/workspace", { recursive: true, signal: gone.signal });
        setTimeout(() => gone.abort(new Error("enough")), 100);
        await expect(Array.fromAsync(silent)).rejects.toThrow("enough");

        const { signal } = new AbortController();
        const watch = (path: string) => driver.guest(shared).watch(path, { recursive: false, signal });
        expect(await failureKind(watch("/workspace/none"))).toBe("path_not_found");
        expect(await failureKind(watch("/etc/passwd"))).toBe(
          can.isolation ? "not_directory" : "path_not_found",
        );
      });
    });

    test("refuses a connection to a port without a listener", async () => {
      expect(await failureKind(driver.guest(shared).connect(1))).toBe("connection_refused");
    });

    describe.runIf(can.checkpoints)("captured images", () => {
      const imageId = () => `captured-${randomBytes(6).toString("hex")}`;

      /** Captures an image of a machine that ran `shell`. */
      async function captureMachine(shell: string) {
        const id = imageId();
        const machine = await boot();
        onTestFinished(() => driver.removeImage(id));
        await execute(driver, machine.id, shell);
        const image = await driver.captureImage(machine.id, { id, name: "mine" }, { timeoutMs: 60_000 });
        return { id, image, machine };
      }

      test("boots a machine of a captured image with its files, and without its processes", async () => {
        const { id, image, machine } = await captureMachine(
          "mkdir -p a/b; echo kept > a/b/c; chmod 700 a; ln -s b a/link; sleep 300 & echo $! > pid",
        );
        const [base] = (await driver.images()).filter((each) => each.id === subject.image);
        expect(image).toMatchObject({
          id,
          name: "mine",
          base: subject.image,
          env: base?.env,
          contents: base?.contents,
          service: base?.service,
        });
        expect((await driver.images()).map((each) => each.id)).toContain(id);
        expect(await out(machine.id, "cat a/link/c")).toBe("kept\n");
        // Processes of a fake machine run on this host. The fake driver does not find processes that left their process
        // group.
        if (can.isolation)
          expect(await out(machine.id, "kill -0 $(cat pid) 2>&1 || echo ended")).toMatch(/ended/);
        await driver.remove(machine.id);
        const next = await boot({ image: id });
        expect(await out(next.id, "cat a/link/c; stat -c %a a; echo more >> a/b/c")).toBe("kept\n700\n");
        // Writes of a machine do not change its image.
        const last = await boot({ image: id });
        expect(await out(last.id, "cat a/b/c")).toBe("kept\n");
      });

      test("captures an image of an existing machine once, and removes the image", async () => {
        const { id, machine } = await captureMachine("echo one > file");
        const again = driver.captureImage(machine.id, { id, name: "other" }, { timeoutMs: 60_000 });
        expect(await failureKind(again)).toBe("already_exists");
        const nobody = driver.captureImage(machineId(), { id: imageId(), name: "x" }, { timeoutMs: 60_000 });
        expect(await failureKind(nobody)).toBe("not_found");
        await driver.removeImage(id);
        await driver.removeImage(id);
        expect((await driver.images()).map((each) => each.id)).not.toContain(id);
        expect(await failureKind(driver.create(machineSpec(id)))).toBe("not_found");
      });

      test("finds a captured image in another driver on the same state", async () => {
        const { id } = await captureMachine("echo kept > file");
        await driver.close();
        driver = await subject.again();
        subject.driver = driver;
        const next = await boot({ image: id });
        expect(await out(next.id, "cat file")).toBe("kept\n");
      });
    });

    describe("imported images", () => {
      const makeLayeredImage = (): LayeredImage => ({
        id: `imported-${machineId()}`,
        name: "imported",
        layers: subject.layers,
        env: { IMPORTED: "image", BASE: "image" },
        sizeBytes: 4096,
      });

      test("merges a machine's environment over that of its imported image", async () => {
        const image = makeLayeredImage();
        onTestFinished(() => driver.removeImage(image.id));
        const made = await driver.importImage(image);
        const { layers: _, ...described } = image;
        expect(made).toEqual({
          ...described,
          contents: {},
          substituted: false,
          service: null,
          createdAt: expect.any(Date),
        });
        const { id } = await boot({ image: image.id });
        expect(await out(id, 'printf "$IMPORTED/$BASE"')).toBe("image/base");
      });

      test("imports an image once, finds it in another driver, and removes it", async () => {
        const image = makeLayeredImage();
        onTestFinished(() => driver.removeImage(image.id));
        const made = await driver.importImage(image);
        expect(await failureKind(driver.importImage(image))).toBe("already_exists");
        await driver.close();
        driver = await subject.again();
        subject.driver = driver;
        const found = (await driver.images()).find(({ id }) => id === image.id);
        expect(found).toEqual({ ...made, createdAt: expect.any(Date) });
        await driver.removeImage(image.id);
        expect((await driver.images()).map(({ id }) => id)).not.toContain(image.id);
      });
    });

    describe("private networks", () => {
      const serves = { name: "db.internal", address: "198.19.0.1", ports: [5432] };

      test("keeps a machine's group and services, also in another driver", async () => {
        const { id } = await boot({ privateNetwork: { group: "acme", serves } });
        const find = async () => (await driver.list()).find((machine) => machine.id === id)?.spec;
        expect((await find())?.privateNetwork).toEqual({ group: "acme", serves });
        await driver.close();
        driver = await subject.again();
        subject.driver = driver;
        expect((await find())?.privateNetwork).toEqual({ group: "acme", serves });
        expect(
          (await driver.list()).find((machine) => machine.id === shared)?.spec?.privateNetwork,
        ).toBeUndefined();
      });

      test("rejects an invalid group or service, and leaves no machine", async () => {
        for (const privateNetwork of [
          { group: "a b" },
          { group: "acme", serves: { ...serves, address: "10.0.0.2" } },
        ]) {
          const spec = specOf({ privateNetwork });
          expect(await failureKind(driver.create(spec))).toBe("failed");
          expect((await driver.list()).map(({ id }) => id)).not.toContain(spec.id);
        }
      });
    });

    describe("adoption", () => {
      test("finds running and frozen machines in a new driver on the same state, and uses them", async () => {
        const [running, frozen] = await Promise.all([boot(), boot()]);
        await execute(driver, running.id, "echo kept > kept");
        if (can.isolation) {
          await driver.guest(running.id).startCommand({ id: "cmd_kept", shell: "echo before; read line" });
        }
        await driver.freeze(frozen.id);
        await driver.close();
        driver = await subject.again();
        subject.driver = driver;
        expect(await stateOf(running.id)).toBe("running");
        const adopted = (await driver.list()).find(({ id }) => id === running.id)?.spec;
        // The environment is a secret of its owner: it exists in the machine, and never on the host's disk.
        expect(adopted).toEqual({ ...running, env: {} });
        expect(await out(running.id, "cat kept")).toBe("kept\n");
        // Commands of a fake machine are children of the driver's process, and end with that process.
        if (can.isolation) {
          expect(await driver.guest(running.id).getCommand("cmd_kept")).toMatchObject({ status: "running" });
          const logs = await driver.guest(running.id).commandLogs("cmd_kept", 0, 100);
          expect(Buffer.concat(logs.chunks.map(({ data }) => data)).toString()).toBe("before\n");
        }
        await driver.thaw(frozen.id);
        expect(await out(frozen.id, "printf thawed")).toBe("thawed");
        expect(await out(shared, "printf shared")).toBe("shared");
      });

      test.runIf(can.checkpoints)(
        "finds a machine frozen, and continues it, when the driver closed during a checkpoint",
        async () => {
          const [spec, directory] = [await boot(), await emptyPlace()];
          await execute(driver, spec.id, "echo kept > kept");
          await driver.checkpoint(spec.id, directory);
          await driver.close();
          driver = await subject.again();
          subject.driver = driver;
          if (can.processesContinue) expect(await stateOf(spec.id)).toBe("frozen");
          await driver.thaw(spec.id);
          expect(await out(spec.id, "cat kept")).toBe("kept\n");
        },
      );
    });
  });
}

function byText(one: unknown, other: unknown): number {
  return String(one).localeCompare(String(other));
}
