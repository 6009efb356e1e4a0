/**
 * The program that an image brings along and that runs in each of its machines, such as the owner of the kernels of a
 * code interpreter. It is started with the machine, so that a pooled one has it warm; it is asked over a port of the
 * machine's loopback, a line of JSON per request and lines of JSON in answer; and a machine whose owner ended it
 * starts it again when somebody needs it. All of them know two requests: `ready` is answered once the service is
 * warm, and `claim` tells it that the machine became somebody's, with the environment that holds from now on.
 *
 * What it says is a machine's word: lines and answers are bounded, and every wait has a deadline.
 */
import { randomBytes } from "node:crypto";
import type { Duplex } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import { isNestedDeeper } from "#lib/json-depth.ts";
import { type Guest, type ImageService, RuntimeError } from "@kontor/runtime/driver.ts";

/** Above the longest line a service of ours says, 16 MiB of results; and all the lines of one answer. */
const lineMaxBytes = 24 * 1024 ** 2;
const answerMaxBytes = 128 * 1024 ** 2;
/** Nesting of a line. A service of ours leaves deeper results out. */
const lineMaxDepth = 512;
/** From its start until it listens, on a host that starts many at once. */
const listensWithinMs = 30_000;
const warmWithinMs = 120_000;
const claimedWithinMs = 5_000;
const idPrefix = "service-";

/** Starts the service; for a machine that was just booted. */
export async function startService(guest: Guest, { argv, port }: ImageService): Promise<void> {
  await guest.startCommand({
    id: idPrefix + randomBytes(8).toString("hex"),
    argv,
    env: { KONTOR_SERVICE_PORT: String(port) },
  });
}

/** Returns once everything is there that a first request would otherwise wait for. */
export async function whenWarm(guest: Guest, service: ImageService): Promise<void> {
  await expectOk(await askService(guest, service, { op: "ready" }), warmWithinMs);
}

/** The machine is somebody's. Safe to repeat. Fails where the service does not run. */
export async function claimService(
  guest: Guest,
  service: ImageService,
  env: Record<string, string>,
): Promise<void> {
  await expectOk(send(await guest.connect(service.port), { op: "claim", env }), claimedWithinMs);
}

async function expectOk(answer: ServiceAnswer, withinMs: number): Promise<void> {
  try {
    const said = await answer.next(withinMs);
    if ((said as { type?: unknown } | undefined)?.type !== "ok") throw unexpected("an answer other than ok");
  } finally {
    answer.close();
  }
}

/** Sends a request; what comes back is read from the answer. */
export async function askService(
  guest: Guest,
  service: ImageService,
  request: object,
): Promise<ServiceAnswer> {
  return send(await open(guest, service), request);
}

function send(stream: Duplex, request: object): ServiceAnswer {
  stream.write(`${JSON.stringify(request)}\n`);
  return new ServiceAnswer(stream);
}

/** A connection to the service, which is started where it does not run. */
async function open(guest: Guest, service: ImageService): Promise<Duplex> {
  const deadline = performance.now() + listensWithinMs;
  for (let waitMs = 10; ; waitMs = Math.min(waitMs * 1.5, 200)) {
    try {
      return await guest.connect(service.port);
    } catch (error) {
      const isRefused = error instanceof RuntimeError && error.kind === "connection_refused";
      if (!isRefused || performance.now() > deadline) throw error;
    }
    // Looked at each time: the end of a program that was killed shows a moment later than its port.
    const commands = await guest.listCommands();
    const runs = commands.some(({ id, status }) => id.startsWith(idPrefix) && status === "running");
    if (!runs) await startService(guest, service);
    await sleep(waitMs);
  }
}

/** The lines a service answers with, parsed but not checked. */
export class ServiceAnswer {
  readonly #stream: Duplex;
  readonly #lines: AsyncGenerator<{ said: unknown; bytes: number }, undefined>;
  /** Length of the line that was read last. */
  lineBytes = 0;

  constructor(stream: Duplex) {
    this.#stream = stream;
    // Whoever reads learns of it.
    stream.on("error", () => {});
    this.#lines = linesOf(stream);
  }

  /** The next line, or undefined once the service hung up. Fails with `timeout`, and with `guest_protocol`. */
  async next(withinMs: number): Promise<unknown> {
    const timer = setTimeout(
      () => this.#stream.destroy(new RuntimeError("timeout", "the machine's service did not answer in time")),
      withinMs,
    );
    try {
      const line = (await this.#lines.next()).value;
      this.lineBytes = line?.bytes ?? 0;
      return line?.said;
    } finally {
      clearTimeout(timer);
    }
  }

  close(): void {
    this.#stream.destroy();
  }
}

async function* linesOf(stream: Duplex): AsyncGenerator<{ said: unknown; bytes: number }, undefined> {
  let pieces: Buffer[] = [];
  let line = 0;
  let all = 0;
  try {
    for await (const chunk of stream as AsyncIterable<Buffer>) {
      all += chunk.length;
      if (all > answerMaxBytes) throw unexpected("an answer that does not end");
      let from = 0;
      for (let to = chunk.indexOf(10); to !== -1; to = chunk.indexOf(10, from)) {
        const whole = Buffer.concat([...pieces, chunk.subarray(from, to)]);
        yield { said: parse(whole), bytes: whole.length };
        pieces = [];
        line = 0;
        from = to + 1;
      }
      line += chunk.length - from;
      if (line > lineMaxBytes) throw unexpected("a line that does not end");
      if (from < chunk.length) pieces.push(chunk.subarray(from));
    }
  } catch (error) {
    if (error instanceof RuntimeError) throw error;
    // A reset is a way to hang up.
  }
  return undefined;
}

function parse(line: Buffer): unknown {
  if (isNestedDeeper(line, lineMaxDepth)) throw unexpected("a line that is nested too deep");
  try {
    return JSON.parse(line.toString("utf8"));
  } catch (error) {
    throw unexpected("a line that is no JSON", error);
  }
}

function unexpected(what: string, cause?: unknown): RuntimeError {
  return new RuntimeError("guest_protocol", `the machine's service sent ${what}`, { cause });
}
