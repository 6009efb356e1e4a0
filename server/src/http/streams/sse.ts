/**
 * Server-sent events. Takes over the reply, and writes frames no faster than the client reads. Pings keep the
 * connection open through proxies. `signal` aborts when the client disconnects or the server shuts down.
 */
import { once } from "node:events";
import type { FastifyReply, FastifyRequest } from "fastify";
import { credentialOf } from "../credential.ts";
import { endWithSlowReader } from "./slow-readers.ts";

interface ServerSentEvent {
  /** JSON-encoded unless it is a string. */
  data: unknown;
  event?: string;
  id?: string | number;
}

export interface EventStream {
  /**
   * Resolves when the kernel has the frame or a bounded buffer holds it. Does nothing after the client disconnected.
   */
  send(event: ServerSentEvent): Promise<void>;
  /** Aborts when the client disconnects or the server ends its streams. */
  readonly signal: AbortSignal;
  /** The event id after which a reconnected client continues. */
  readonly lastEventId: string | null;
  close(): void;
}

/** Open streams. The server ends these streams after the grace period of its shutdown. */
const open = new Set<AbortController>();

export function endAllStreams(): void {
  for (const controller of open) controller.abort(new Error("the server is stopping"));
}

function formatEvent({ data, event, id }: ServerSentEvent): string {
  const text = typeof data === "string" ? data : JSON.stringify(data);
  const head = `${id === undefined ? "" : `id: ${id}\n`}${event === undefined ? "" : `event: ${event}\n`}`;
  // A line break inside the data would end the field, so each line gets its own `data:`.
  return `${head}${text
    .split(/\r\n|\r|\n/)
    .map((line) => `data: ${line}`)
    .join("\n")}\n\n`;
}

/** 15 s: below the 30 to 60 s after which common proxies drop a silent connection. */
const pingEveryMs = 15_000;

export function openEventStream(
  request: FastifyRequest,
  reply: FastifyReply,
  options: { retryMs?: number; status?: number; slowWindowMs?: number } = {},
): EventStream {
  request.server.streams.claim(request, request.actor);
  const controller = new AbortController();
  open.add(controller);
  const { raw } = reply.hijack();
  raw.writeHead(options.status ?? 200, {
    ...(reply.getHeaders() as Record<string, string>),
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store, no-transform",
    // nginx buffers responses by default, which delays all events to the end.
    "x-accel-buffering": "no",
  });
  endWithSlowReader(raw, { mayBeSilent: true, windowMs: options.slowWindowMs });
  const ping = setInterval(() => {
    if (!raw.writableNeedDrain) raw.write(": ping\n\n");
  }, pingEveryMs);
  const credential = credentialOf(request.headers);
  const end = (): void => controller.abort(new Error("the credential is no longer valid"));
  const unwatch = credential && request.server.streams.add({ actor: request.actor, credential, end });
  const finish = (): void => {
    clearInterval(ping);
    unwatch?.();
    open.delete(controller);
    controller.abort(new Error("the client disconnected"));
  };
  raw.once("close", finish);
  raw.on("error", finish);
  if (raw.destroyed) finish();
  controller.signal.addEventListener("abort", () => raw.end(), { once: true });
  if (options.retryMs === undefined) raw.flushHeaders();
  else raw.write(`retry: ${options.retryMs}\n\n`);
  return {
    signal: controller.signal,
    lastEventId: [request.headers["last-event-id"]].flat()[0] ?? null,
    async send(event) {
      if (raw.destroyed || raw.writableEnded) return;
      if (raw.write(formatEvent(event))) return;
      await once(raw, "drain", { signal: controller.signal }).catch(() => undefined);
    },
    close: () => {
      raw.end();
      finish();
    },
  };
}
