/**
 * API client of the benchmarks: one kept connection, raw response bytes, and no work between a request and its
 * timestamp.
 *
 * An unexpected status ends the benchmark: a fast failure must not count as a fast response.
 */
import { Agent, request } from "node:http";
import type { BenchContext } from "./contract.ts";

export interface Answer {
  status: number;
  bytes: Buffer;
}

export interface Sandbox {
  id: string;
  status: string;
}

export interface ExecResult {
  stdout: string;
  exit_code: number;
  duration_ms: number;
}

const agent = new Agent({ keepAlive: true });

export class Api {
  readonly #baseUrl: string;
  readonly #token: string;

  constructor({ baseUrl, token }: Pick<BenchContext, "baseUrl" | "token">) {
    this.#baseUrl = baseUrl;
    this.#token = token;
  }

  send(method: string, path: string, body?: Buffer): Promise<Answer> {
    const headers = {
      authorization: `Bearer ${this.#token}`,
      ...(body ? { "content-type": "application/json", "content-length": body.length } : {}),
    };
    return new Promise((resolve, reject) => {
      const call = request(this.#baseUrl + path, { method, headers, agent }, (response) => {
        const parts: Buffer[] = [];
        response.on("data", (part: Buffer) => parts.push(part));
        response.on("end", () => resolve({ status: response.statusCode ?? 0, bytes: Buffer.concat(parts) }));
        response.on("error", reject);
      });
      call.on("error", reject);
      call.end(body);
    });
  }

  async json<T>(method: string, path: string, expected: number, body?: unknown): Promise<T> {
    const sent = body === undefined ? undefined : Buffer.from(JSON.stringify(body));
    const { status, bytes } = await this.send(method, path, sent);
    if (status !== expected)
      throw new Error(`${method} ${path}: ${status} ${bytes.toString().slice(0, 500)}`);
    return JSON.parse(bytes.toString()) as T;
  }

  create(): Promise<Sandbox> {
    return this.json<Sandbox>("POST", "/v1/sandboxes", 201, { template: "debian-12" });
  }

  async exec(id: string, input: { command: string } | { args: string[] }): Promise<ExecResult> {
    const result = await this.json<ExecResult>("POST", `/v1/sandboxes/${id}/exec`, 200, input);
    if (result.exit_code !== 0) throw new Error(`${JSON.stringify(input)}: ${JSON.stringify(result)}`);
    return result;
  }

  async remove(id: string): Promise<void> {
    await this.json("DELETE", `/v1/sandboxes/${id}`, 200);
  }
}
