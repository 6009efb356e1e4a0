/** Fixtures for test files of the shared server, and helpers for common calls. */
import { afterAll, beforeAll, expect, inject, onTestFinished } from "vitest";
import { base64, type Sandbox } from "./answers.ts";
import { type Call, type Frame, frames, type Reply } from "./api.ts";
import { Server, type ServerDescription } from "./server.ts";

declare module "vitest" {
  interface ProvidedContext {
    server: ServerDescription;
    /** Name of the namespace that simulates the internet. */
    internet: string;
  }
}

export const server = new Server(inject("server"));

export const debian = { template: "debian-12" };

/** Creates a sandbox, and deletes it when the test ends. */
export async function createSandbox(input: Record<string, unknown> = {}, call: Call = {}): Promise<Sandbox> {
  const made = await server.api("POST", "/v1/sandboxes", { ...call, body: { ...debian, ...input } });
  expect(made.status, JSON.stringify(made.body)).toBe(201);
  onTestFinished(() => deleteSandbox(made.body.id));
  return made.body as Sandbox;
}

/** Creates a sandbox for all tests of a file, which must not change it. */
export function sharedSandbox(input: Record<string, unknown> = {}): { readonly id: string } {
  let id = "";
  beforeAll(async () => {
    const made = await server.api("POST", "/v1/sandboxes", {
      body: { ...debian, timeout_seconds: 1800, ...input },
    });
    expect(made.status, JSON.stringify(made.body)).toBe(201);
    id = made.body.id;
  });
  afterAll(() => deleteSandbox(id));
  return {
    get id() {
      return id;
    },
  };
}

export async function deleteSandbox(id: string): Promise<void> {
  const gone = await server.api("DELETE", `/v1/sandboxes/${id}`);
  expect(gone.status, JSON.stringify(gone.body)).toBe(200);
}

export async function getSandbox(id: string): Promise<Sandbox> {
  const got = await server.api("GET", `/v1/sandboxes/${id}`);
  expect(got.status).toBe(200);
  return got.body as Sandbox;
}

export interface ExecResult {
  stdout: string;
  stderr: string;
  exit_code: number;
  duration_ms: number;
  timed_out: boolean;
  truncated: boolean;
  signal: string | null;
}

/** Runs a command to its end. The call must succeed; the command may fail. */
export async function exec(
  id: string,
  command: string,
  input: Record<string, unknown> = {},
): Promise<ExecResult> {
  const ran = await tryExec(id, command, input);
  expect(ran.status, JSON.stringify(ran.body)).toBe(200);
  return ran.body as ExecResult;
}

export function tryExec(id: string, command: string, input: Record<string, unknown> = {}): Promise<Reply> {
  return server.api("POST", `/v1/sandboxes/${id}/exec`, { body: { command, ...input } });
}

/** Returns the output of a command that must succeed, without the last line break. */
export async function output(id: string, command: string): Promise<string> {
  const ran = await exec(id, command);
  expect(ran.exit_code, ran.stderr).toBe(0);
  return ran.stdout.trimEnd();
}

export function streamExec(
  id: string,
  body: Record<string, unknown>,
  signal?: AbortSignal,
): AsyncGenerator<Frame> {
  return frames(server.baseUrl, `/v1/sandboxes/${id}/exec`, {
    token: server.token,
    body: { ...body, stream: true },
    ...(signal ? { signal } : {}),
  });
}

export function writeFile(
  id: string,
  path: string,
  content: string | Uint8Array,
  more: Record<string, unknown> = {},
): Promise<Reply> {
  return server.api("POST", `/v1/sandboxes/${id}/files`, {
    body: { path, content: base64(content), ...more },
  });
}

export function readFile(id: string, path: string): Promise<Reply> {
  return server.api("GET", `/v1/sandboxes/${id}/files?path=${encodeURIComponent(path)}`);
}

export function statFile(id: string, path: string): Promise<Reply> {
  return server.api("GET", `/v1/sandboxes/${id}/files/stat?path=${encodeURIComponent(path)}`);
}
