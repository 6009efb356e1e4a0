/** Reads the frames of server-sent events in tests. */
import type { Json } from "./agent-app.ts";

export interface Frame {
  id: string | null;
  event: string | null;
  data: Json;
}

/** Reads frames until the stream ends. With `most`, reads that many frames and then closes the connection. */
export async function readFrames(
  url: string,
  options: {
    token: string;
    lastEventId?: number;
    most?: number;
    method?: string;
    body?: unknown;
    headers?: Record<string, string>;
  },
): Promise<{ frames: Frame[]; text: string; headers: Headers; status: number }> {
  const hangUp = new AbortController();
  const response = await fetch(url, {
    method: options.method ?? "GET",
    signal: hangUp.signal,
    headers: {
      authorization: `Bearer ${options.token}`,
      ...(options.body === undefined ? {} : { "content-type": "application/json" }),
      ...options.headers,
      ...(options.lastEventId === undefined ? {} : { "last-event-id": String(options.lastEventId) }),
    },
    ...(options.body === undefined ? {} : { body: JSON.stringify(options.body) }),
  });
  let text = "";
  const decoder = new TextDecoder();
  try {
    for await (const chunk of response.body!) {
      text += decoder.decode(chunk as Uint8Array, { stream: true });
      if (options.most !== undefined && parse(text).length >= options.most) hangUp.abort();
    }
  } catch (error) {
    if (!hangUp.signal.aborted) throw error;
  }
  const frames = parse(text).slice(0, options.most);
  return { frames, text, headers: response.headers, status: response.status };
}

function parse(text: string): Frame[] {
  return text
    .split("\n\n")
    .slice(0, -1)
    .map((block) => block.split("\n"))
    .filter((lines) => lines.some((line) => line.startsWith("data: ")))
    .map((lines) => {
      const field = (name: string) =>
        lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2) ?? null;
      const data = field("data")!;
      return { id: field("id"), event: field("event"), data: data === "[DONE]" ? data : JSON.parse(data) };
    });
}
