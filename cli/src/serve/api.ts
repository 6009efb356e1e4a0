/** The API calls of the command to the server that it started. */
import { Failure } from "../lib/failure.ts";

interface TemplateProgress {
  name: string;
  /** State of the template: `absent`, `preparing`, `ready` or `failed`. */
  state: string;
  fraction: number;
  step: string;
  error?: string | null;
  image?: { substituted?: boolean } | null;
}

/** An image that the server prepares on request (`prepare_images`). */
export interface ImageProgress {
  name: string;
  /** State of the image: `waiting`, `preparing`, `ready` or `failed`. */
  state: string;
  fraction: number;
  step: string;
  error: string | null;
}

export interface Readiness {
  ready: boolean;
  templates: TemplateProgress[];
  images: ImageProgress[];
}

/** Returns the readiness of the server. Undefined if no server responds. */
export async function readiness(baseUrl: string): Promise<Readiness | undefined> {
  try {
    const response = await fetch(`${baseUrl}/readyz`, { signal: AbortSignal.timeout(5_000) });
    const body = (await response.json()) as Partial<Readiness>;
    return {
      ready: body.ready ?? response.ok,
      templates: body.templates ?? [],
      images: body.images ?? [],
    };
  } catch {
    return undefined;
  }
}

export interface Answer<T> {
  status: number;
  body: T;
  retryAfterSeconds: number;
}

export async function call<T>(
  server: { baseUrl: string; token: string },
  method: string,
  route: string,
  body?: unknown,
): Promise<Answer<T>> {
  const response = await fetch(`${server.baseUrl}${route}`, {
    method,
    headers: {
      authorization: `Bearer ${server.token}`,
      ...(body === undefined ? {} : { "content-type": "application/json" }),
    },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    signal: AbortSignal.timeout(90_000),
  });
  const text = await response.text();
  return {
    status: response.status,
    body: (text === "" ? {} : JSON.parse(text)) as T,
    retryAfterSeconds: Number(response.headers.get("retry-after") ?? "1"),
  };
}

/** Returns the body of a successful response, and throws otherwise. */
export function expectOk<T>(answer: Answer<T>, doing: string): T {
  if (answer.status >= 200 && answer.status < 300) return answer.body;
  const { detail, code } = answer.body as { detail?: unknown; code?: string };
  throw new Failure(
    `${doing}: ${answer.status} ${code ?? ""} ${typeof detail === "string" ? detail : JSON.stringify(detail)}`,
  );
}
