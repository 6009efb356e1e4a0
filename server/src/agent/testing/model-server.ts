/** A scripted model server for tests. The server implements the OpenAI-compatible chat API over real HTTP. */
import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll } from "vitest";

export interface Turn {
  /** Text of the response, split into the pieces that the server sends. */
  text?: readonly string[];
  reasoning?: readonly string[];
  /** Tool calls of the response. `arguments` may be invalid JSON. */
  calls?: readonly { name: string; arguments: string }[];
  /** HTTP status of an error response, which replaces the stream. */
  status?: number;
  headers?: Record<string, string>;
  error?: string;
  /** Delay between two pieces, in milliseconds. */
  delayMs?: number;
  /** Number of pieces after which the server closes the connection, without the end of the stream. */
  cutAfter?: number;
  /** Raw response that replaces the pieces. */
  raw?: string;
  usage?: { prompt_tokens: number; completion_tokens: number };
  finish?: string;
  /** Promise that the server awaits before the first piece. */
  until?: Promise<void>;
}

// oxlint-disable-next-line typescript/no-explicit-any -- as below
type Answerer = (body: any) => Turn;

export interface ModelServer {
  /** Base URL of the server. */
  url: string;
  /** Bodies of all requests, in order. */
  // oxlint-disable-next-line typescript/no-explicit-any -- a body's shape is what tests look at
  asked: any[];
  /** `Authorization` headers of the requests since the last script. */
  authorizations: (string | undefined)[];
  /**
   * Sets the responses for the next requests. The last response repeats. A function computes the response from a
   * request's body.
   */
  script: (turns: readonly Turn[] | Answerer) => void;
}

export async function startModelServer(): Promise<ModelServer> {
  let turns: Turn[] | Answerer = [];
  const server = createServer((request, response) => {
    void answer(request, response).catch(() => response.destroy());
  });
  const model: ModelServer = {
    url: "",
    asked: [],
    authorizations: [],
    script: (next) => {
      turns = typeof next === "function" ? next : [...next];
      model.asked = [];
      model.authorizations = [];
    },
  };
  async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    let body = "";
    for await (const piece of request.setEncoding("utf8")) body += String(piece);
    const asked: unknown = JSON.parse(body);
    model.asked.push(asked);
    model.authorizations.push(request.headers.authorization);
    const turn =
      (typeof turns === "function" ? turns(asked) : turns.length > 1 ? turns.shift() : turns[0]) ?? {};
    await turn.until;
    if (turn.status !== undefined) {
      response.writeHead(turn.status, { "content-type": "application/json", ...turn.headers });
      // Some servers repeat the request's credentials in their errors.
      const message = `${turn.error ?? "no"} ${request.headers.authorization ?? ""}`;
      return void response.end(JSON.stringify({ error: { message, type: "test", code: null } }));
    }
    response.writeHead(200, { "content-type": "text/event-stream" });
    if (turn.raw !== undefined) return void response.end(turn.raw);
    await speak(response, turn);
  }
  await once(server.listen(0, "127.0.0.1"), "listening");
  afterAll(() => {
    server.closeAllConnections();
    server.close();
  });
  model.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`;
  return model;
}

async function speak(response: ServerResponse, turn: Turn): Promise<void> {
  const head = { id: "c", object: "chat.completion.chunk", created: 1, model: "scripted" };
  const send = (choice: object, more: object = {}) =>
    response.write(`data: ${JSON.stringify({ ...head, choices: [{ index: 0, ...choice }], ...more })}\n\n`);
  const pieces = [
    ...(turn.reasoning ?? []).map((reasoning_content) => ({ reasoning_content })),
    ...(turn.text ?? (turn.calls ? [] : ["Hello."])).map((content) => ({ content })),
    ...(turn.calls ?? []).map((call, index) => ({
      tool_calls: [{ index, id: `c${index}`, type: "function", function: call }],
    })),
  ];
  for (const [index, delta] of pieces.entries()) {
    if (turn.cutAfter === index) return void response.destroy();
    send({ delta: { role: "assistant", ...delta }, finish_reason: null });
    if (turn.delayMs) await sleep(turn.delayMs);
  }
  if (turn.cutAfter !== undefined) return void response.destroy();
  send({ delta: {}, finish_reason: turn.finish ?? (turn.calls ? "tool_calls" : "stop") });
  const usage = turn.usage ?? { prompt_tokens: 10, completion_tokens: 5 };
  response.write(
    `data: ${JSON.stringify({ ...head, choices: [], usage: { ...usage, total_tokens: usage.prompt_tokens + usage.completion_tokens } })}\n\n`,
  );
  response.end("data: [DONE]\n\n");
}
