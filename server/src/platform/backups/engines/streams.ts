/**
 * Runs programs in a database's machine, with streamed input and output. Output that is not read blocks the program,
 * not the server.
 */
import type { GuestProcess, Guest } from "#machines/host/guest.ts";
import { BackupFailed } from "../errors.ts";

/** Bytes of error output that are kept. */
const keptBytes = 4_000;
/**
 * Size of a piece in bytes. Larger pieces than the 4 KiB of pg_dump need fewer writes to the store and to the second
 * machine.
 */
const pieceBytes = 32 * 1024;

export interface Program {
  argv: string[];
  user?: string;
  env?: Record<string, string>;
}

/**
 * Yields the program's output in large pieces. The first piece may be small: it shows that the program has started.
 * Throws at the end if the program failed. If the reader stops, the program is ended.
 */
export async function* outputOf(guest: Guest, program: Program, signal: AbortSignal): AsyncGenerator<Buffer> {
  const child = await start(guest, program, signal);
  let captured = "";
  let gathered: Buffer[] = [];
  let bytes = 0;
  let threshold = 1;
  try {
    child.process.endStdin();
    for await (const { stream, data } of child.process.output) {
      if (stream === "stderr") {
        captured = (captured + data.toString("utf8")).slice(-keptBytes);
        continue;
      }
      gathered.push(data);
      bytes += data.length;
      if (bytes < threshold) continue;
      yield gathered.length === 1 ? data : Buffer.concat(gathered, bytes);
      [gathered, bytes, threshold] = [[], 0, pieceBytes];
    }
    if (bytes > 0) yield Buffer.concat(gathered, bytes);
    await requireSuccess(program, child.process, captured);
  } catch (error) {
    throw signal.aborted ? signal.reason : error;
  } finally {
    child.letGo();
  }
}

/** Runs a program with this input until the program ends. */
export async function feed(
  guest: Guest,
  program: Program,
  content: AsyncIterable<Buffer>,
  signal: AbortSignal,
): Promise<void> {
  const child = await start(guest, program, signal);
  let captured = "";
  let isOver = false;
  const reading = (async () => {
    for await (const { data } of child.process.output)
      captured = (captured + data.toString("utf8")).slice(-keptBytes);
    isOver = true;
  })();
  reading.catch(() => {});
  try {
    for await (const piece of content) {
      // The program has failed and would discard the rest. The error below names the cause.
      if (isOver) break;
      await child.process.writeStdin(piece);
    }
    child.process.endStdin();
    await reading;
    await requireSuccess(program, child.process, captured);
  } catch (error) {
    throw signal.aborted ? signal.reason : error;
  } finally {
    child.letGo();
  }
}

/** Runs a program and returns its whole output, which is short. */
export async function textOf(
  guest: Guest,
  program: Program & { stdin?: string },
  signal: AbortSignal,
  maxBytes = 64 * 1024,
): Promise<string> {
  const child = await start(guest, program, signal);
  const captured = { stdout: "", stderr: "" };
  try {
    if (program.stdin !== undefined) await child.process.writeStdin(Buffer.from(program.stdin));
    child.process.endStdin();
    for await (const { stream, data } of child.process.output) {
      captured[stream] += data.toString("utf8");
      if (captured.stdout.length > maxBytes)
        throw new BackupFailed(`${program.argv[0]} wrote too much output.`);
      captured.stderr = captured.stderr.slice(-keptBytes);
    }
    await requireSuccess(program, child.process, captured.stderr);
    return captured.stdout;
  } catch (error) {
    throw signal.aborted ? signal.reason : error;
  } finally {
    child.letGo();
  }
}

export async function start(
  guest: Guest,
  { argv, user, env }: Program,
  signal: AbortSignal,
): Promise<{ process: GuestProcess; letGo: () => void }> {
  signal.throwIfAborted();
  const process = await guest.spawn({
    argv,
    cwd: "/",
    onDisconnect: "kill",
    ...(user === undefined ? {} : { user }),
    ...(env === undefined ? {} : { env }),
  });
  const stop = () => process.close();
  signal.addEventListener("abort", stop, { once: true });
  if (signal.aborted) stop();
  return {
    process,
    letGo: () => {
      signal.removeEventListener("abort", stop);
      process.close();
    },
  };
}

export async function requireSuccess(
  { argv }: Program,
  process: Pick<GuestProcess, "exit">,
  captured: string,
): Promise<void> {
  const { code, signal } = await process.exit;
  if (code === 0) return;
  const name = argv[0]?.split("/").at(-1);
  const how = code === null ? `was ended by signal ${signal}` : `ended with exit code ${code}`;
  throw new BackupFailed(`${name} ${how}${lastLine(captured)}`);
}

function lastLine(captured: string): string {
  const line = captured.trim().split("\n").filter(Boolean).slice(0, 2).join(" ").slice(0, 500);
  return line === "" ? "." : `: ${line}`;
}
