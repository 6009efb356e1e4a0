/**
 * The service of an image: a program that runs in each of its machines, such as the owner of a code interpreter's
 * kernels. The service starts with the machine, so that a pooled machine has a warm service. Requests go to a port of
 * the machine's loopback, one line of JSON each, and the response is lines of JSON. If the owner of a machine ended the
 * service, the next use starts it again. Every service knows two requests: `ready` returns once the service is warm,
 * and `claim` passes the environment of the machine's new owner.
 *
 * A machine controls the responses: lines and responses are bounded, and every wait has a deadline.
 */
import { randomBytes } from "node:crypto";
import type { Duplex } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import { isNestedDeeper } from "#lib/json-depth.ts";
import { type Guest, type ImageService, RuntimeError } from "@kontor/runtime/driver.ts";

/**
 * Maximum bytes of one line, and of a whole response: above the longest line of our services, which has 16 MiB of
 * results.
 */
const lineMaxBytes = 24 * 1024 ** 2;
const answerMaxBytes = 128 * 1024 ** 2;
/** Maximum nesting of a line. Our services leave deeper results out. */
const lineMaxDepth = 512;
/** Time from the start until the service listens, on a host that starts many services at once. */
const listensWithinMs = 30_000;
const warmWithinMs = 120_000;
const claimedWithinMs = 5_000;
const idPrefix = "service-";

/** Starts the service in a machine that has just booted. */
export async function startService(guest: Guest, { argv, port }: ImageService): Promise<void> {
  await guest.startCommand({
    id: idPrefix + randomBytes(8).toString("hex"),
    argv,
    env: { KONTOR_SERVICE_PORT: String(port) },
  });
}

/** Returns once the service is warm, so that a first request need not wait. */
export async function whenWarm(guest: Guest, service: ImageService): Promise<void> {
  await expectOk(await requestService(guest, service, { op: "ready" }), warmWithinMs);
}

/** Passes the new owner's environment to the service. Safe to repeat. Fails if the service does not run. */
export async function claimService(
  guest: Guest,
  service: ImageService,
  env: Record<string, string>,
): Promise<void> {
  await expectOk(send(await guest.connect(service.port), { op: "claim", env }), claimedWithinMs);
}

async function expectOk(answer: ServiceResponse, withinMs: number): Promise<void> {
  try {
    const said = await answer.next(withinMs);
    if ((said as { type?: unknown } | undefined)?.type !== "ok")
      throw unexpectedResponse("an answer other than ok");
  } finally {
    answer.close();
  }
}

/** Sends a request; the caller reads the response from the result. */
export async function requestService(
  guest: Guest,
  service: ImageService,
  request: object,
): Promise<ServiceResponse> {
  return send(await open(guest, service), request);
}

function send(stream: Duplex, request: object): ServiceResponse {
  stream.write(`${JSON.stringify(request)}\n`);
  return new ServiceResponse(stream);
}

/** Connects to the service, and starts it if it does not run. */
async function open(guest: Guest, service: ImageService): Promise<Duplex> {
  const deadline = performance.now() + listensWithinMs;
  for (let waitMs = 10; ; waitMs = Math.min(waitMs * 1.5, 200)) {
    try {
      return await guest.connect(service.port);
    } catch (error) {
      const isRefused = error instanceof RuntimeError && error.kind === "connection_refused";
      if (!isRefused || performance.now() > deadline) throw error;
    }
    // The commands are listed each time, because a killed program stays in the list for a moment after its port closes.
    const commands = await guest.listCommands();
    const runs = commands.some(({ id, status }) => id.startsWith(idPrefix) && status === "running");
    if (!runs) await startService(guest, service);
    await sleep(waitMs);
  }
}

/** Lines of a service's response, parsed but not validated. */
export class ServiceResponse {
  readonly #stream: Duplex;
  readonly #lines: AsyncGenerator<{ said: unknown; bytes: number }, undefined>;
  /** Length of the last line, in bytes. */
  lineBytes = 0;

  constructor(stream: Duplex) {
    this.#stream = stream;
    // The reader receives the error.
    stream.on("error", () => {});
    this.#lines = linesOf(stream);
  }

  /**
   * Returns the next line, or undefined once the service closed the connection. Fails with `timeout`, and with
   * `guest_protocol`.
   */
  async next(withinMs: number): Promise<unknown> {
    const timer = setTimeout(
      () =>
        this.#stream.destroy(new RuntimeError("timeout", "the machine's service did not respond in time")),
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
      if (all > answerMaxBytes) throw unexpectedResponse("an answer that does not end");
      let from = 0;
      for (let to = chunk.indexOf(10); to !== -1; to = chunk.indexOf(10, from)) {
        const whole = Buffer.concat([...pieces, chunk.subarray(from, to)]);
        yield { said: parse(whole), bytes: whole.length };
        pieces = [];
        line = 0;
        from = to + 1;
      }
      line += chunk.length - from;
      if (line > lineMaxBytes) throw unexpectedResponse("a line that does not end");
      if (from < chunk.length) pieces.push(chunk.subarray(from));
    }
  } catch (error) {
    if (error instanceof RuntimeError) throw error;
    // A reset counts as the end of the connection.
  }
  return undefined;
}

function parse(line: Buffer): unknown {
  if (isNestedDeeper(line, lineMaxDepth)) throw unexpectedResponse("a line that is nested too deep");
  try {
    return JSON.parse(line.toString("utf8"));
  } catch (error) {
    throw unexpectedResponse("a line that is no JSON", error);
  }
}

function unexpectedResponse(what: string, cause?: unknown): RuntimeError {
  return new RuntimeError("guest_protocol", `the machine's service sent ${what}`, { cause });
}
