/** A project of a server: a test app in its own repository, with functions that push and visit it. */
import { cpSync, readFileSync, writeFileSync } from "node:fs";
import http from "node:http";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { run as runProgram } from "@kontor/runtime/exec.ts";
import type { Server } from "../../e2e/support/server.ts";
import { Api } from "./api.ts";

const apps = join(import.meta.dirname, "../../e2e/apps");

export class Project {
  readonly id: string;
  readonly directory: string;
  readonly #api: Api;
  readonly #server: Server;
  readonly #remote: string;
  readonly #host: string;
  #commits = 0;

  static async create(server: Server, home: string, name: string, app: string): Promise<Project> {
    const api = new Api(server);
    const made = await api.json<{ id: string; git_url: string; url: string }>(
      "POST",
      "/api/v1/projects",
      201,
      {
        name,
      },
    );
    const directory = join(home, name);
    cpSync(join(apps, app), directory, { recursive: true });
    const project = new Project(server, api, directory, made);
    await project.#git("init", "--quiet", "--initial-branch=main");
    return project;
  }

  private constructor(
    server: Server,
    api: Api,
    directory: string,
    made: { id: string; git_url: string; url: string },
  ) {
    this.id = made.id;
    this.directory = directory;
    this.#server = server;
    this.#api = api;
    this.#remote = made.git_url.replace("://", `://bench:${server.token}@`);
    this.#host = new URL(made.url).hostname;
  }

  /** Commits a change of the file and pushes it. Resolves when the change is live. */
  async push(changed?: string): Promise<void> {
    this.#commits += 1;
    if (changed !== undefined) {
      const file = join(this.directory, changed);
      const comment = changed.endsWith(".html") ? `<!-- ${this.#commits} -->` : `// ${this.#commits}`;
      writeFileSync(file, `${readFileSync(file, "utf8")}${comment}\n`);
    }
    await this.#git("add", ".");
    await this.#git("commit", "--quiet", `--message=number ${this.#commits}`);
    await this.#git("push", "--quiet", this.#remote, "main");
    const { status, error } = await this.#newest();
    if (status !== "live") throw new Error(`a deployment is ${status}: ${error}`);
  }

  /** Rolls back to the previous deployment. */
  async rollback(): Promise<void> {
    const { items } = await this.#api.json<{ items: { id: string; status: string }[] }>(
      "GET",
      `/api/v1/projects/${this.id}/deployments?limit=20`,
      200,
    );
    const before = items.find(({ status }) => status === "superseded");
    const { id } = await this.#api.json<{ id: string }>(
      "POST",
      `/api/v1/deployments/${before?.id}/rollback`,
      200,
    );
    for (;;) {
      const { status, error } = await this.#api.json<Deployment>("GET", `/api/v1/deployments/${id}`, 200);
      if (status === "live") return;
      if (status === "failed") throw new Error(`a rollback failed: ${error}`);
      await sleep(20);
    }
  }

  visit(agent: http.Agent | false): Promise<void> {
    const options = { agent, headers: { host: this.#host }, timeout: 30_000 };
    return new Promise((resolve, reject) => {
      const request = http.get(this.#server.baseUrl, options, (response) => {
        response.resume().once("error", reject);
        response.once("end", () =>
          response.statusCode === 200 ? resolve() : reject(new Error(`status ${response.statusCode}`)),
        );
      });
      request.once("timeout", () => request.destroy(new Error("no answer")));
      request.once("error", reject);
    });
  }

  async #newest(): Promise<Deployment> {
    const path = `/api/v1/projects/${this.id}/deployments?limit=1`;
    const { items } = await this.#api.json<{ items: Deployment[] }>("GET", path, 200);
    return items[0]!;
  }

  async #git(...args: string[]): Promise<void> {
    const who = ["-c", "user.name=bench", "-c", "user.email=bench@example.org"];
    await runProgram(["git", ...who, ...args], { cwd: this.directory, timeoutMs: 600_000 });
  }
}

interface Deployment {
  status: string;
  error: string | null;
}
