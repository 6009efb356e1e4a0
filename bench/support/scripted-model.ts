/**
 * A model for benchmarks: implements the OpenAI-compatible chat API without latency, and records the time of each
 * request. A GET belongs to the tool, because models get no GET.
 */
import { once } from "node:events";
import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";

export interface ModelRequest {
  // oxlint-disable-next-line typescript/no-explicit-any -- whatever a client sends
  body: any;
  /** `performance.now()` at the head of the request; `answeredMs` at the end of the response. */
  heardMs: number;
  answeredMs: number;
}

interface Turn {
  text?: readonly string[];
  call?: { name: string; arguments: string };
  /** Delay in milliseconds before each piece after the first. */
  delayMs?: number;
}

export interface ScriptedModel {
  url: string;
  asked: ModelRequest[];
  answer: (body: ModelRequest["body"]) => Turn;
  /** Called for each piece that is sent. */
  onPiece: ((text: string) => void) | undefined;
  close(): void;
}

export async function startScriptedModel(): Promise<ScriptedModel> {
  const model: ScriptedModel = {
    url: "",
    asked: [],
    answer: () => ({ text: ["Hello."] }),
    onPiece: undefined,
    close: () => {
      server.closeAllConnections();
      server.close();
    },
  };
  const server = createServer((request, response) => {
    const heardMs = performance.now();
    if (request.method !== "POST") return void response.writeHead(200).end("{}");
    let text = "";
    request.setEncoding("utf8");
    request.on("data", (piece: string) => (text += piece));
    request.on("end", () => {
      const asked: ModelRequest = { body: JSON.parse(text) as unknown, heardMs, answeredMs: 0 };
      model.asked.push(asked);
      void speak(response, model, model.answer(asked.body)).then(() => {
        asked.answeredMs = performance.now();
      });
    });
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  model.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`;
  return model;
}

async function speak(response: ServerResponse, model: ScriptedModel, turn: Turn): Promise<void> {
  const head = {
    id: `c${model.asked.length}`,
    object: "chat.completion.chunk",
    created: 1,
    model: "scripted",
  };
  const send = (choice: object, more: object = {}) =>
    response.write(`data: ${JSON.stringify({ ...head, choices: [{ index: 0, ...choice }], ...more })}\n\n`);
  response.writeHead(200, { "content-type": "text/event-stream" });
  for (const [index, content] of (turn.text ?? []).entries()) {
    if (index > 0 && turn.delayMs) await sleep(turn.delayMs);
    model.onPiece?.(content);
    send({ delta: { role: "assistant", content }, finish_reason: null });
  }
  if (turn.call) {
    const call = { index: 0, id: "c0", type: "function", function: turn.call };
    send({ delta: { role: "assistant", tool_calls: [call] }, finish_reason: null });
  }
  send({ delta: {}, finish_reason: turn.call ? "tool_calls" : "stop" });
  send({ delta: {} }, { choices: [], usage: { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 } });
  response.end("data: [DONE]\n\n");
}
