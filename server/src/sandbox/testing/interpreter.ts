/**
 * Imitates the owner of a machine's kernels, by code/PROTOCOL.md, without kernels. This imitation stores contexts, and
 * the test determines the output of cells; the default output is the cell's code.
 */
import { createInterface } from "node:readline";
import type { Duplex } from "node:stream";

/** Output of a cell: frames after `started`; the last should be `done`. A string is sent unchanged. */
export type Play = (request: { id: string; code: string }) => AsyncIterable<object | string>;

export interface FakeInterpreter {
  (connection: Duplex): void;
  /** Every request, unchanged. */
  requests: Record<string, unknown>[];
  /** Closes every connection, like the end of the machine. */
  hangUp(): void;
}

export const done = {
  type: "done",
  execution_count: 1,
  duration_ms: 2,
  interrupted: false,
  restarted: false,
  truncated: [],
};

export function playInterpreter(play: Play = echo): FakeInterpreter {
  const contexts = new Map<string, Record<string, unknown>>();
  const requests: Record<string, unknown>[] = [];
  const open = new Set<Duplex>();

  async function* answer(request: Record<string, string>): AsyncGenerator<object | string> {
    const id = request["id"] ?? "";
    const context = contexts.get(id);
    if (request["op"] === "run") {
      yield { type: "started" };
      yield* play({ id, code: request["code"] ?? "" });
    } else if (request["op"] === "list_contexts") {
      yield { type: "contexts", contexts: [...contexts.values()] };
    } else if (request["op"] === "create_context") {
      const { language, cwd } = request;
      const made = {
        id,
        language,
        cwd,
        created_at: "2026-01-01T00:00:00.000Z",
        execution_count: 0,
        status: "idle",
      };
      contexts.set(id, made);
      yield { type: "context", context: made };
    } else if (request["op"] === "ready" || request["op"] === "claim") {
      yield { type: "ok" };
    } else if (context === undefined) {
      yield { type: "refused", code: "context_not_found", message: "No such context." };
    } else {
      if (request["op"] === "delete_context") contexts.delete(id);
      yield { type: "context", context };
    }
  }

  const serve = (connection: Duplex): void => {
    connection.on("error", () => {});
    open.add(connection);
    createInterface({ input: connection }).once("line", async (line) => {
      const request = JSON.parse(line) as Record<string, string>;
      requests.push(request);
      for await (const frame of answer(request)) {
        if (connection.destroyed) return;
        connection.write(typeof frame === "string" ? frame : `${JSON.stringify(frame)}\n`);
      }
      connection.end();
    });
  };
  const hangUp = (): void => {
    for (const connection of open) connection.destroy();
  };
  return Object.assign(serve, { requests, hangUp });
}

async function* echo({ code }: { code: string }): AsyncGenerator<object> {
  yield { type: "result", text: code };
  yield done;
}
