/**
 * A run's access to the server's own API. The run's token is created at the first call and exists only in this object.
 * The transaction that ends the run or moves it to another process revokes the token.
 */
import { endRunToken, mintRunToken, type RunToken } from "#accounts/tokens/run-tokens.ts";
import type { Scope } from "#accounts/roles.ts";
import type { App } from "#app.ts";
import { findWorker } from "../agents/worker.ts";
import type { ApiResponse, ApiRequest, Operation, OwnApi } from "./workers.ts";

type Needs = Pick<App, "db" | "clock">;

export interface AccessGrant {
  runId: string;
  agentId: string;
  scopes: readonly Scope[];
  /** Maximum remaining time of the run, in milliseconds. */
  leftMs: number;
}

export class WorkerAccess {
  readonly #app: Needs;
  readonly #api: OwnApi;
  readonly #granted: AccessGrant;
  #token: Promise<RunToken> | undefined;

  constructor(app: Needs, api: OwnApi, granted: AccessGrant) {
    this.#app = app;
    this.#api = api;
    this.#granted = granted;
  }

  get operations(): readonly Operation[] {
    return this.#api.operations;
  }

  async call(
    request: ApiRequest,
    options: { headers: Readonly<Record<string, string>>; signal: AbortSignal },
  ): Promise<ApiResponse> {
    this.#token ??= this.#mint();
    const { plaintext } = await this.#token;
    const answer = await this.#api.send(request, { ...options, token: plaintext });
    return { ...answer, text: answer.text.replaceAll(plaintext, "[secret]") };
  }

  /** Revokes the run's token. */
  async close(): Promise<void> {
    const token = await this.#token?.catch(() => undefined);
    if (token) await endRunToken(this.#app, token);
  }

  async #mint(): Promise<RunToken> {
    const { runId, agentId, scopes, leftMs } = this.#granted;
    const worker = await findWorker(this.#app.db, agentId);
    const token = worker && (await mintRunToken(this.#app, { worker, runId, scopes, expiresInMs: leftMs }));
    if (!token) throw new Error("the agent's workspace does not exist any more");
    return token;
  }
}
