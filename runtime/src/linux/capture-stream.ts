/**
 * The host's end of a capture: reads the output of the guest's capture program, with deadlines that the guest
 * cannot extend.
 */
import { RuntimeError, type Guest } from "../driver.ts";
import { GUEST_PROGRAM } from "./kontor-mounts.ts";

/**
 * Limit of the time between two pieces of output. The capture program walks the image's files meanwhile, which takes
 * seconds, or tens of seconds on a busy host.
 */
const SILENCE_MS = 60_000;
const MAX_MESSAGE_CHARS = 500;

export async function* captureStream(
  guest: Guest,
  { timeoutMs, silenceMs = SILENCE_MS }: { timeoutMs: number; silenceMs?: number },
): AsyncGenerator<Buffer> {
  const late = Promise.withResolvers<never>();
  late.promise.catch(() => {});
  const tooLate = new RuntimeError("timeout", "the machine's files could not be read in time");
  const expire = () => late.reject(tooLate);
  const total = setTimeout(expire, timeoutMs);
  const silence = setTimeout(expire, silenceMs);
  const inTime = <T>(work: Promise<T>): Promise<T> => {
    silence.refresh();
    return Promise.race([work, late.promise]);
  };
  const argv: [string, string] = [GUEST_PROGRAM, "capture"];
  const spawned = guest.spawn({ argv, cwd: "/", timeoutMs, onDisconnect: "kill" });
  try {
    const running = await inTime(spawned);
    running.endStdin();
    const chunks = running.output[Symbol.asyncIterator]();
    let message = "";
    for (;;) {
      const next = await inTime(chunks.next());
      if (next.done === true) break;
      const { stream, data } = next.value;
      if (stream === "stdout") yield data;
      else message = (message + data.toString()).slice(0, MAX_MESSAGE_CHARS);
    }
    const { code, signal, timedOut, outOfMemory } = await inTime(running.exit);
    if (timedOut) throw tooLate;
    if (outOfMemory) message = "the machine ran out of memory";
    else if (signal !== null) message = `the capture program was killed by signal ${signal}`;
    if (code !== 0) throw new RuntimeError("failed", `the machine's files could not be read: ${message}`);
  } finally {
    clearTimeout(total);
    clearTimeout(silence);
    spawned.then(
      (running) => running.close(),
      () => {},
    );
  }
}
