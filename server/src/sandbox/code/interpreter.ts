/**
 * Client of the program that owns a machine's kernels, by PROTOCOL.md. The machine controls every response, so each is
 * validated here. An invalid response ends the call as `interpreter_failed`, and never the server.
 */
import { z } from "zod";
import type { Guest, ImageService } from "#machines/host/guest.ts";
import { requestService, type ServiceResponse } from "#machines/host/services.ts";
import { invalidField } from "../sandboxes/errors.ts";
import {
  contextBusy,
  contextLimitReached,
  contextNotFound,
  interpreterFailed,
  interpreterOutdated,
  interpreterUnavailable,
} from "./errors.ts";
import { Chart, CodeContext, CodeError, type Language, Table } from "./schema.ts";

export const protocol = "kontor-code/2";
/** Protocol of machines and templates of an older image, without bash and the environment of a cell. */
export const olderProtocol = "kontor-code/1";

/** Returns the image's interpreter. Throws if the interpreter is too old for the request. */
export function interpreterOf(
  service: ImageService | null | undefined,
  asked: { language?: Language | null | undefined; env?: Record<string, string> | undefined } = {},
): ImageService {
  if (service?.speaks === protocol) return service;
  if (service?.speaks !== olderProtocol) throw interpreterUnavailable();
  if (asked.language === "bash" || Object.keys(asked.env ?? {}).length > 0) throw interpreterOutdated();
  return service;
}

/** Deadline for a response that may start a kernel on a busy host. */
const answersWithinMs = 90_000;
/** Deadline for the start of a cell, which is the longest duration of a cell. Earlier cells may take an hour each. */
const turnWithinMs = 3_600_000;
/** Time beyond a cell's own timeout for its interrupt and its last output. */
const slackMs = 30_000;

/**
 * Maximum output of a cell, held in memory for a buffered response. The machine has the same bounds, apart from JSON
 * escapes; a larger output is a violation of the protocol.
 */
const streamMaxCharacters = 8 * 1024 ** 2;
const othersMaxBytes = 32 * 1024 ** 2;
const maxResults = 100;

const Refused = z.object({ type: z.literal("refused"), code: z.string(), message: z.string() });
const size = z.int().min(0).max(Number.MAX_SAFE_INTEGER);
const base64 = z
  .string()
  .regex(/^[A-Za-z0-9+/]*={0,2}$/)
  .nullish();

const Frame = z.discriminatedUnion("type", [
  z.object({ type: z.literal("started") }),
  z.object({ type: z.literal("stream"), stream: z.enum(["stdout", "stderr"]), text: z.string() }),
  z.object({
    type: z.literal("result"),
    text: z.string().nullish(),
    html: z.string().nullish(),
    markdown: z.string().nullish(),
    latex: z.string().nullish(),
    svg: z.string().nullish(),
    png: base64,
    jpeg: base64,
    pdf: base64,
    json: z.unknown().optional(),
    table: Table.nullish(),
    chart: Chart.nullish(),
  }),
  CodeError.extend({ type: z.literal("error") }),
  z.object({
    type: z.literal("done"),
    execution_count: size.nullable(),
    duration_ms: size,
    interrupted: z.boolean(),
    restarted: z.boolean(),
    truncated: z.array(z.object({ field: z.string().max(64), limit: size, size })).max(1000),
  }),
  Refused,
]);
export type Frame = Exclude<z.output<typeof Frame>, { type: "refused" | "started" }>;

export type Ask =
  | { op: "list_contexts" }
  | { op: "create_context"; id: string; language: Language; cwd: string }
  | { op: "restart_context" | "delete_context"; id: string };

const Answer = z.discriminatedUnion("type", [
  z.object({ type: z.literal("contexts"), contexts: z.array(CodeContext).max(100) }),
  z.object({ type: z.literal("context"), context: CodeContext }),
  Refused,
]);

/** Sends a request, and returns the contexts that the response names: one, or several for a list. */
export async function ask(guest: Guest, service: ImageService, request: Ask): Promise<CodeContext[]> {
  const answer = await requestService(guest, service, request);
  try {
    const said = read(Answer, await answer.next(answersWithinMs));
    if (said.type === "refused") throw refusal(said);
    return said.type === "contexts" ? said.contexts : [said.context];
  } finally {
    answer.close();
  }
}

export interface Cell {
  id: string;
  code: string;
  language: Language | null;
  env: Record<string, string>;
  timeout_seconds: number;
  /** True if the cell ends when its reader disconnects. */
  watched: boolean;
}

/** A cell that has left the queue and runs. */
export class RunningCell {
  readonly #answer: ServiceResponse;
  readonly #withinMs: number;

  private constructor(answer: ServiceResponse, withinMs: number) {
    this.#answer = answer;
    this.#withinMs = withinMs;
  }

  /** Returns once the cell runs. Aborting `signal` removes the cell from the queue. */
  static async start(
    guest: Guest,
    service: ImageService,
    cell: Cell,
    signal?: AbortSignal,
  ): Promise<RunningCell> {
    const answer = await requestService(guest, service, { op: "run", ...cell });
    const giveUp = (): void => answer.close();
    signal?.addEventListener("abort", giveUp, { once: true });
    try {
      const line = await answer.next(turnWithinMs);
      if (line === undefined) await refuseWhereGone(guest);
      const said = read(Frame, line);
      if (said.type === "refused") throw refusal(said);
      if (said.type !== "started") throw interpreterFailed(new Error(`${said.type} before started`));
      return new RunningCell(answer, cell.timeout_seconds * 1000 + slackMs);
    } catch (error) {
      answer.close();
      throw error;
    } finally {
      signal?.removeEventListener("abort", giveUp);
    }
  }

  /**
   * Yields the output of the cell; the last frame is `done`. Returns without `done` if the interpreter disconnects.
   */
  async *frames(): AsyncGenerator<Frame> {
    const deadline = performance.now() + this.#withinMs;
    const left = {
      stdout: streamMaxCharacters,
      stderr: streamMaxCharacters,
      results: maxResults,
      others: othersMaxBytes,
    };
    try {
      for (;;) {
        const line = await this.#answer.next(Math.max(0, deadline - performance.now()));
        if (line === undefined) return;
        const frame = read(Frame, line);
        if (frame.type === "refused") throw refusal(frame);
        if (frame.type === "started") throw interpreterFailed(new Error("a second start"));
        if (frame.type === "stream") left[frame.stream] -= frame.text.length;
        else left.others -= this.#answer.lineBytes;
        if (frame.type === "result") left.results -= 1;
        if (Object.values(left).some((room) => room < 0))
          throw interpreterFailed(new Error("more than a cell may say"));
        yield frame;
        if (frame.type === "done") return;
      }
    } finally {
      this.close();
    }
  }

  close(): void {
    this.#answer.close();
  }
}

/**
 * Called after the interpreter disconnected. Returns if another process of the sandbox ended the interpreter. Fails
 * with `machine_died` if the machine ended or is being paused.
 */
export async function refuseWhereGone(guest: Guest): Promise<void> {
  await guest.ping().catch((cause: unknown) => {
    throw Object.assign(new Error("the machine hung up", { cause }), { kind: "machine_died" });
  });
}

function read<T>(shape: z.ZodType<T>, line: unknown): T {
  const parsed = shape.safeParse(line);
  if (parsed.success) return parsed.data;
  throw interpreterFailed(parsed.error);
}

function refusal({ code, message }: z.output<typeof Refused>): Error {
  return (refusals[code] ?? interpreterFailed)(message);
}

/**
 * Errors in the server's own words; messages of the machine are passed on only if they repeat the caller's input.
 */
const refusals: Record<string, (message: string) => Error> = {
  context_not_found: contextNotFound,
  context_busy: contextBusy,
  context_limit_reached: contextLimitReached,
  invalid_cwd: () => invalidField("cwd", "must be a directory of the sandbox."),
  wrong_language: () => invalidField("language", "the context runs another language."),
  invalid_env: () =>
    invalidField(
      "env",
      "every name and value must be text; bash takes names of letters, digits and _ that do not begin with a digit, and no read-only ones such as UID.",
    ),
};
