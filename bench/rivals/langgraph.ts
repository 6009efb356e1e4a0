/**
 * The rival of agent runs: LangGraph's development server, with its prebuilt loop and the same model and tool. The
 * server keeps its state in memory. The benchmark installs these versions from the registry.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { run as runProgram } from "@kontor/runtime/exec.ts";
import { freePort } from "../../cli/src/serve/port.ts";

const packages = [
  "@langchain/langgraph-api@2.0.0",
  "@langchain/langgraph@1.7.3",
  "@langchain/langgraph-checkpoint@1.2.2",
  "@langchain/core@1.4.0",
  "@langchain/openai@1.6.0",
  "typescript@5.9.3",
  "zod@4.6.7",
];
const startsWithinMs = 60_000;

const graph = `
import { ChatOpenAI } from "@langchain/openai";
import { tool } from "@langchain/core/tools";
import { createReactAgent } from "@langchain/langgraph/prebuilt";
const look = tool(async () => (await fetch(process.env.TOOLS_URL + "/look")).text(), {
  name: "desk__look", description: "Looks.", schema: { type: "object", properties: {} } });
const llm = new ChatOpenAI({
  model: "scripted", apiKey: "none", streaming: true, configuration: { baseURL: process.env.MODEL_URL } });
export const graph = createReactAgent({ llm, tools: [look] });
`;
const server = `
import { startServer } from "@langchain/langgraph-api/server";
await startServer({ port: Number(process.env.PORT), host: "127.0.0.1", cwd: process.cwd(),
  nWorkers: Number(process.env.WORKERS), graphs: { agent: "./graph.mjs:graph" } });
`;

export interface LangGraph {
  /** Creates a thread, runs it to the end, and deletes it. */
  run(): Promise<void>;
  close(): void;
}

/** Starts the server. Throws if the server cannot be installed or does not start. */
export async function startLangGraph(urls: {
  model: string;
  tools: string;
  atOnce: number;
}): Promise<LangGraph> {
  const folder = mkdtempSync(join(tmpdir(), "kontor-bench-langgraph-"));
  let child: ChildProcess | undefined;
  const close = () => {
    child?.kill("SIGKILL");
    rmSync(folder, { recursive: true, force: true });
  };
  try {
    writeFileSync(join(folder, "package.json"), '{"type":"module","private":true}');
    writeFileSync(join(folder, "graph.mjs"), graph);
    writeFileSync(join(folder, "server.mjs"), server);
    const flags = ["--no-audit", "--no-fund", "--ignore-scripts", "--legacy-peer-deps", "--save-exact"];
    await runProgram(["npm", "install", ...flags, ...packages], { cwd: folder, timeoutMs: 300_000 });
    const port = await freePort();
    const base = `http://127.0.0.1:${port}`;
    child = spawn(process.execPath, ["server.mjs"], {
      cwd: folder,
      stdio: "ignore",
      env: {
        ...process.env,
        PORT: String(port),
        WORKERS: String(urls.atOnce),
        MODEL_URL: urls.model,
        TOOLS_URL: urls.tools,
        LANGSMITH_TRACING: "false",
      },
    });
    await untilReady(base);
    const rival = { run: () => runOnce(base), close };
    await rival.run();
    return rival;
  } catch (error) {
    close();
    throw error;
  }
}

async function runOnce(base: string): Promise<void> {
  const { thread_id } = (await post(`${base}/threads`, {})) as { thread_id: string };
  const input = { messages: [{ role: "user", content: "Go." }] };
  const said = JSON.stringify(
    await post(`${base}/threads/${thread_id}/runs/wait`, { assistant_id: "agent", input }),
  );
  if (!said.includes("Done.")) throw new Error(`LangGraph responded with ${said.slice(0, 300)}`);
  await fetch(`${base}/threads/${thread_id}`, { method: "DELETE" });
}

async function post(url: string, body: unknown): Promise<unknown> {
  const response = await fetch(url, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  if (!response.ok) throw new Error(`${url}: ${response.status} ${await response.text()}`);
  return response.json();
}

async function untilReady(base: string): Promise<void> {
  for (const deadline = Date.now() + startsWithinMs; ;) {
    const answer = await fetch(`${base}/ok`).catch(() => undefined);
    if (answer?.ok) return;
    if (Date.now() > deadline) throw new Error("LangGraph's server did not start");
    await sleep(100);
  }
}
