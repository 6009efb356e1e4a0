/** Tests of the pool of MCP connections. */
import { beforeEach, expect, test } from "vitest";
import { parseOpenedHosts } from "#lib/network/addresses.ts";
import { modelFetch } from "../models/fetch.ts";
import { startMcpServer } from "../testing/mcp-server.ts";
import { type McpPeer, McpConnections } from "./connections.ts";

const server = await startMcpServer();
const connections = new McpConnections(modelFetch(parseOpenedHosts(["127.0.0.0/8"])));
const peer = (change: Partial<McpPeer> = {}): McpPeer => ({
  key: "a",
  version: "1",
  address: { url: server.url, headers: {} },
  owner: "workspace",
  onToolsChanged: () => {},
  ...change,
});
const tool = { name: "find", inputSchema: { type: "object" } };
const { signal } = new AbortController();
const call = (of: McpPeer, headers: Record<string, string> = {}) =>
  connections.use(of, (connection) => connection.call(tool, {}, { timeoutMs: 10_000, signal, headers }));
const countConnections = () => server.methods().filter((method) => method === "initialize").length;

beforeEach(async () => {
  await connections.closeAll();
  server.asked = [];
});

test("sends the call's trace headers to the server", async () => {
  await call(peer(), { traceparent: "00-1-2-01" });
  await call(peer());
  expect(server.asked.map(({ headers }) => headers["traceparent"]).filter(Boolean)).toEqual(["00-1-2-01"]);
  expect(countConnections()).toBe(1);
});

test("replaces a connection that has almost reached its limit of bytes read", async () => {
  server.call = () => ({ content: [{ type: "text", text: "x".repeat(6 * 1024 ** 2) }] });
  for (let round = 0; round < 7; round += 1) await call(peer());
  expect(countConnections()).toBe(2);
});

test("accepts every response to a ping, even an error", async () => {
  for (const generation of ["2025-11-25", "2026-07-28"] as const) {
    server.generation = generation;
    await connections.use(peer({ key: generation }), (connection) => connection.ping(5_000));
  }
});
