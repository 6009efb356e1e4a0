import { expect, test } from "vitest";
import { hostPaths, machinePaths } from "../linux/paths.ts";
import { checkpointArgv, restoreArgv, runArgv } from "./runsc.ts";

const id = "m0123456789abcdefghi";
const paths = machinePaths(hostPaths("/var/lib/kontor/runtime", 7), id);

test("starts runsc with the machine's own root, disk and log", () => {
  expect(runArgv({ runsc: "runsc", platform: "systrap", paths, id })).toEqual([
    "runsc",
    "--root=/run/kontor/7/m0123456789abcdefghi/runsc",
    "--log=/var/lib/kontor/runtime/machines/m0123456789abcdefghi/engine.log",
    "--log-format=json",
    "--platform=systrap",
    "--network=sandbox",
    "--overlay2=root:dir=/var/lib/kontor/runtime/machines/m0123456789abcdefghi/disk",
    "--host-uds=open",
    "--net-disconnect-ok=true",
    "--cpu-num-from-quota",
    "run",
    "--detach",
    "--bundle=/var/lib/kontor/runtime/machines/m0123456789abcdefghi",
    "m0123456789abcdefghi",
  ]);
});

test("leaves the machine running in a checkpoint, without compression, and without direct I/O if the machine is small", () => {
  const input = { runsc: "runsc", platform: "systrap", paths, id } as const;
  const flags = (argv: string[]) => argv.slice(argv.indexOf("--cpu-num-from-quota") + 1);
  expect(flags(checkpointArgv(input, { directory: "/s", direct: false }))).toEqual([
    "checkpoint",
    "--leave-running",
    "--compression=none",
    "--image-path=/s",
    id,
  ]);
  expect(checkpointArgv(input, { directory: "/s", direct: true })).toContain("--direct");
  expect(flags(restoreArgv(input, { directory: "/s", direct: true }))).toEqual([
    "restore",
    "--detach",
    "--direct",
    `--bundle=/var/lib/kontor/runtime/machines/${id}`,
    "--image-path=/s",
    id,
  ]);
});
