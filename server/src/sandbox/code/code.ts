/**
 * Stateful code in a sandbox: each context is a kernel whose variables stay from cell to cell. A program of the
 * machine's image owns the kernels and is the source of truth. Kernels outlive this server and every connection, and a
 * pause keeps them. This folder connects to that program, bounds its responses, and stores nothing. A cell that raises,
 * is interrupted or ends its kernel still has a regular response.
 */
import type { Guest, ImageService } from "#machines/host/guest.ts";
import type { Actor } from "#accounts/actor.ts";
import { DomainError } from "#lib/errors.ts";
import { machineDied } from "#machines/errors.ts";
import { explain, inside, type InsideNeeds } from "../sandboxes/sandboxes.ts";
import { type DeniedTargets, watchDenials } from "../exec/egress-denials.ts";
import { type Frame, interpreterOf, refuseWhereGone, RunningCell } from "./interpreter.ts";
import type { Code, CodeError, CodeItem, CodeResult, CodeSummary, Language } from "./schema.ts";

type Needs = InsideNeeds;

/**
 * Runs `call` with the interpreter of a sandbox. Throws if the image has no interpreter, or if the interpreter is too
 * old for the request.
 */
export function interpreting<T>(
  app: Needs,
  actor: Actor,
  id: string,
  asked: Parameters<typeof interpreterOf>[1],
  call: (guest: Guest, service: ImageService, row: { machine_id: string | null }) => Promise<T>,
): Promise<T> {
  return inside(app, actor, id, async (guest, row) => {
    const service = interpreterOf(await app.machines.service(row.machine_id ?? ""), asked);
    return call(guest, service, row);
  });
}

export function runBuffered(app: Needs, actor: Actor, id: string, input: Code): Promise<CodeResult> {
  const cell = cellOf(input, false);
  return interpreting(app, actor, id, cell, async (guest, service, row) => {
    using denied = watchDenials(app, row);
    const running = await RunningCell.start(guest, service, cell);
    const told = { results: [] as CodeItem[], stdout: "", stderr: "", error: null as CodeError | null };
    for await (const frame of ended(guest, running)) {
      if (frame.type === "stream") told[frame.stream] += frame.text;
      else if (frame.type === "result") told.results.push(toItem(frame));
      else if (frame.type === "error") told.error = toError(frame);
      else return { ...told, ...toSummary(frame, cell.id), ...denied.field() };
    }
    throw machineDied(undefined);
  });
}

export interface CodeEvent {
  event: "stream" | "result" | "error" | "done";
  data: unknown;
}

/**
 * Starts a cell and returns its events. An error before the cell runs is thrown, and becomes an ordinary error
 * response.
 */
export async function startStreamed(
  app: Needs,
  actor: Actor,
  id: string,
  input: Code,
  signal?: AbortSignal,
): Promise<{ events: AsyncIterable<CodeEvent>; stop: () => void }> {
  const cell = cellOf(input, true);
  return interpreting(app, actor, id, cell, async (guest, service, row) => {
    using undo = new DisposableStack();
    const denied = undo.use(watchDenials(app, row));
    const running = await RunningCell.start(guest, service, cell, signal);
    undo.move();
    const events = eventsOf(ended(guest, running), { context: cell.id, denied }, (error) =>
      explain(app, actor, id, error),
    );
    return { events, stop: () => (denied[Symbol.dispose](), running.close()) };
  });
}

async function* eventsOf(
  frames: AsyncIterable<Frame>,
  cell: { context: string; denied: DeniedTargets },
  why: (error: unknown) => Promise<unknown>,
): AsyncIterable<CodeEvent> {
  try {
    for await (const frame of frames) yield toEvent(frame, cell);
  } catch (error) {
    const explained = await why(error);
    const [name, value] =
      explained instanceof DomainError
        ? [explained.code, explained.detail]
        : ["internal_error", "The stream broke."];
    yield { event: "error", data: { name, value, traceback: [] } };
    yield toEvent({ ...cutOff, restarted: false }, cell);
  } finally {
    cell.denied[Symbol.dispose]();
  }
}

/** Final frame of a cell whose real end is unknown. */
const cutOff: FrameOf<"done"> = {
  type: "done",
  execution_count: null,
  duration_ms: 0,
  interrupted: false,
  restarted: true,
  truncated: [],
};

/**
 * Yields the frames up to the end of the cell. The interpreter may disconnect during a cell while the machine runs,
 * because another process of the sandbox ended the interpreter. The cell and its kernel are then lost, and the next
 * cell gets a new kernel.
 */
async function* ended(guest: Guest, running: RunningCell): AsyncGenerator<Frame> {
  for await (const frame of running.frames()) {
    yield frame;
    if (frame.type === "done") return;
  }
  await refuseWhereGone(guest);
  const value = "The code interpreter was terminated while it ran this cell; the next cell starts a new one.";
  yield { type: "error", name: "InterpreterDied", value, traceback: [] };
  yield cutOff;
}

function cellOf(input: Code, watched: boolean) {
  const { code, timeout_seconds, language, env = {} } = input;
  const id = contextOf(input);
  return { id, code, language: language ?? null, env, timeout_seconds, watched };
}

/** Every language has its own `default` context; Python's has the plain name. */
const defaults: Record<Language, string> = {
  python: "default",
  javascript: "default-javascript",
  typescript: "default-typescript",
  bash: "default-bash",
};

function contextOf({ context_id: id, language }: Pick<Code, "context_id" | "language">): string {
  return id === null || id === undefined || id === "default" ? defaults[language ?? "python"] : id;
}

function toEvent(frame: Frame, { context, denied }: { context: string; denied: DeniedTargets }): CodeEvent {
  if (frame.type === "stream") return { event: "stream", data: { stream: frame.stream, text: frame.text } };
  if (frame.type === "result") return { event: "result", data: toItem(frame) };
  if (frame.type === "error") return { event: "error", data: toError(frame) };
  return { event: "done", data: { ...toSummary(frame, context), ...denied.field() } };
}

type FrameOf<Type extends Frame["type"]> = Extract<Frame, { type: Type }>;

export function toItem(frame: FrameOf<"result">): CodeItem {
  const all = {
    text: frame.text ?? null,
    html: frame.html ?? null,
    png: frame.png ?? null,
    json: frame.json ?? null,
    chart: frame.chart ?? null,
    jpeg: frame.jpeg ?? null,
    svg: frame.svg ?? null,
    pdf: frame.pdf ?? null,
    markdown: frame.markdown ?? null,
    latex: frame.latex ?? null,
    table: frame.table ?? null,
  };
  return { type: richest(all), ...all };
}

/** Returns the richest form: chart, PNG, HTML, JSON, text, in this order. An unknown chart has no data. */
function richest({ html, png, json, chart }: Omit<CodeItem, "type">): CodeItem["type"] {
  if (chart !== null && chart.type !== "unknown") return "chart";
  if (png !== null) return "image_png";
  if (html !== null) return "html";
  return json === null ? "text" : "json";
}

function toError({ name, value, traceback }: FrameOf<"error">): CodeError {
  return { name, value, traceback };
}

function toSummary(frame: FrameOf<"done">, context: string): CodeSummary {
  const { execution_count, duration_ms, interrupted, restarted, truncated } = frame;
  return { execution_count, context_id: context, duration_ms, interrupted, restarted, truncated };
}
