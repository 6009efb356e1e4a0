/** Client of the API: plain HTTP with JSON, and the frames of an event stream. */

export interface Call {
  /** Token of the call. Null sends no credential. */
  token?: string | null;
  body?: unknown;
  /** Body text sent unchanged, instead of `body`. */
  text?: string;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

/** `body` is the parsed JSON, or `undefined` if there is none. */
export interface Reply {
  status: number;
  headers: Headers;
  // oxlint-disable-next-line typescript/no-explicit-any -- the wire, looked at by assertions on purpose
  body: any;
}

export async function request(
  baseUrl: string,
  method: string,
  path: string,
  call: Call = {},
): Promise<Reply> {
  const response = await send(baseUrl, method, path, call);
  const text = await response.text();
  return {
    status: response.status,
    headers: response.headers,
    body: text === "" ? undefined : JSON.parse(text),
  };
}

/** A line of an event stream, as JSON. */
export interface Frame {
  kind: string;
  pid?: number;
  stream?: string;
  data?: string;
  code?: number | string;
  message?: string;
  signal?: string | null;
  duration_ms?: number | null;
  /** Field of a watch event. */
  path?: string;
  from?: string;
  is_dir?: boolean;
}

/** Yields the frames of an event stream. A line that is neither `data:` nor a comment is an error. */
export async function* frames(
  baseUrl: string,
  path: string,
  call: Call,
  method = "POST",
): AsyncGenerator<Frame> {
  const response = await send(baseUrl, method, path, call);
  const type = response.headers.get("content-type");
  if (response.status !== 200 || type?.split(";")[0] !== "text/event-stream") {
    throw new Error(`not a stream: ${response.status} ${type} ${await response.text()}`);
  }
  let rest = "";
  const decoder = new TextDecoder();
  for await (const bytes of response.body ?? []) {
    rest += decoder.decode(bytes as Uint8Array, { stream: true });
    const blocks = rest.split("\n\n");
    rest = blocks.pop() ?? "";
    for (const block of blocks) {
      if (block.startsWith(":") || block.startsWith("retry:")) continue;
      if (!/^data: \{.*\}$/.test(block))
        throw new Error(`not a frame: ${JSON.stringify(block.slice(0, 200))}`);
      yield JSON.parse(block.slice("data: ".length)) as Frame;
    }
  }
  if (rest !== "") throw new Error(`the stream broke off in ${JSON.stringify(rest.slice(0, 200))}`);
}

function send(baseUrl: string, method: string, path: string, call: Call): Promise<Response> {
  const body = call.text ?? (call.body === undefined ? undefined : JSON.stringify(call.body));
  return fetch(baseUrl + path, {
    method,
    headers: {
      ...(call.token ? { authorization: `Bearer ${call.token}` } : {}),
      ...(body === undefined ? {} : { "content-type": "application/json" }),
      ...call.headers,
    },
    ...(body === undefined ? {} : { body }),
    ...(call.signal ? { signal: call.signal } : {}),
  });
}
