/** Creates projects, pushes to them, and visits them at their address. */
import { execFile } from "node:child_process";
import { cpSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import http, { type IncomingMessage } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { expect } from "vitest";
import { eventually } from "./answers.ts";
import type { Server } from "./server.ts";

const run = promisify(execFile);

export interface Project {
  id: string;
  slug: string;
  git_url: string;
  production_environment_id: string;
}

export interface Deployment {
  id: string;
  number: number;
  status: string;
  error: string | null;
  steps: { name: string; status: string; duration_ms: number | null }[];
  image?: { reference: string; digest: string | null } | null;
}

let made = 0;

/** Creates a project. The caller deletes it. */
export async function makeProject(server: Server, more: Record<string, unknown> = {}): Promise<Project> {
  const name = `shop-${(made += 1)}-${process.pid}`;
  const { status, body } = await server.api("POST", "/api/v1/projects", { body: { name, ...more } });
  expect(status, JSON.stringify(body)).toBe(201);
  return body as Project;
}

export async function deleteProject(server: Server, { id }: Project): Promise<void> {
  await server.api("DELETE", `/api/v1/projects/${id}`);
}

/** Returns a Dockerfile that runs `server.js` on Node. */
export const dockerfile = (more = "") => `FROM node:22-slim
WORKDIR /srv
COPY server.js ./
${more}
USER 1000:1000
EXPOSE 4000
CMD ["node", "server.js"]
`;

export const saying = (text: string) =>
  `require("node:http").createServer((_, a) => a.end(${JSON.stringify(text)})).listen(process.env.PORT);
process.on("SIGTERM", () => process.exit(0));`;

/** Pushes these files as one commit, and returns git's output. */
export function push(server: Server, project: Project, files: Record<string, string>): Promise<string> {
  return pushCommit(server, project, (directory) => {
    for (const [name, text] of Object.entries(files)) writeFileSync(join(directory, name), text);
  });
}

/** Pushes all files of a directory. */
export function pushDirectory(server: Server, project: Project, from: string): Promise<string> {
  return pushCommit(server, project, (directory) => cpSync(from, directory, { recursive: true }));
}

async function pushCommit(
  server: Server,
  project: Project,
  fill: (directory: string) => void,
): Promise<string> {
  const directory = mkdtempSync(join(tmpdir(), "kontor-push-"));
  const git = (...args: string[]) =>
    run("git", ["-c", "user.name=A", "-c", "user.email=a@example.test", ...args], { cwd: directory });
  try {
    await git("init", "-q", "-b", "main");
    fill(directory);
    await git("add", "-A", "-f");
    await git("commit", "-q", "-m", `commit ${Date.now()}`);
    const url = project.git_url.replace("://", `://x:${server.token}@`);
    const { stderr } = await git("push", "--force", url, "main");
    return stderr;
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

async function deployments(server: Server, project: Project): Promise<Deployment[]> {
  const { body } = await server.api("GET", `/api/v1/projects/${project.id}/deployments`);
  return body.items as Deployment[];
}

/** Waits for the end of the newest deployment. */
export async function waitForDeployment(server: Server, project: Project): Promise<Deployment> {
  const [newest] = await eventually(
    () => deployments(server, project),
    ([first]) => first !== undefined && !["queued", "building", "deploying"].includes(first.status),
    120_000,
  );
  return newest!;
}

export interface Answer {
  status: number;
  text: string;
}

/** Visits a project at its host, on a new connection. */
export async function visit(server: Server, project: Pick<Project, "slug">, path = "/"): Promise<Answer> {
  const response = await open(server, project, path);
  let text = "";
  for await (const piece of response.setEncoding("utf8")) text += String(piece);
  return { status: response.statusCode ?? 0, text };
}

export function open(server: Server, { slug }: Pick<Project, "slug">, path = "/"): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    const { port } = server.description;
    const headers = { host: `${slug}.apps.localhost` };
    const request = http.get({ host: "127.0.0.1", port, path, headers, agent: false, timeout: 60_000 });
    request.on("response", resolve);
    request.on("timeout", () => request.destroy(new Error("no answer")));
    request.on("error", reject);
  });
}
