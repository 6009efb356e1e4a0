/**
 * Freezes one mounted filesystem and thaws it again: a process of its own, so that a backup that is killed leaves
 * nothing frozen. Descriptor 3 is a directory of the filesystem: it keeps pointing there when something is unmounted,
 * where a path would point to the host's own disk. It thaws when its input ends, and at the latest after the seconds
 * of its argument; its exit code is 0 only when it thawed because it was told to.
 */
import { spawnFreeze } from "../lib/run.ts";

const deadlineMs = Number(process.argv[2]) * 1000;
const descriptor = 3;

for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) process.on(signal, () => {});
let isTold = false;
const end = new Promise<void>((resolve) => {
  process.stdin.on("data", () => (isTold = true));
  process.stdin.on("end", resolve).on("error", () => resolve());
  setTimeout(() => {
    isTold = false;
    resolve();
  }, deadlineMs);
});

const frozen = await spawnFreeze("--freeze", descriptor);
if (frozen !== 0) process.exit(2);
process.stdout.on("error", () => {});
process.stdout.write("frozen\n");
await end;
const wasTold = isTold;
const thawed = await spawnFreeze("--unfreeze", descriptor);
process.exit(thawed === 0 && wasTold ? 0 : 1);
