/**
 * Freezes one mounted filesystem and thaws it again. A separate process does this, so that a killed backup leaves no
 * filesystem frozen. Descriptor 3 is a directory of the filesystem. The descriptor stays valid after an unmount, when a
 * path would lead to the host's own disk. The guard thaws the filesystem when its input ends, or after the seconds of
 * its argument. The exit code is 0 only if the guard received `thaw` in time.
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
// A signal does not stop FIFREEZE: an fsfreeze that was killed at its deadline has frozen the filesystem.
if (frozen === 137) await spawnFreeze("--unfreeze", descriptor);
if (frozen !== 0) process.exit(2);
process.stdout.on("error", () => {});
process.stdout.write("frozen\n");
await end;
const wasTold = isTold;
const thawed = await spawnFreeze("--unfreeze", descriptor);
process.exit(thawed === 0 && wasTold ? 0 : 1);
