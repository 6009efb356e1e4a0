/** Connections that are kept. */
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
const opened = () => server.methods().filter((method) => method === "initialize").length;

beforeEach(async () => {
  await connections.closeAll();
  server.asked = [];
});

test("what a call is part of is said with it", async () => {
  await call(peer(), { traceparent: "00-1-2-01" });
  await call(peer());
  expect(server.asked.map(({ headers }) => headers["traceparent"]).filter(Boolean)).toEqual(["00-1-2-01"]);
  expect(opened()).toBe(1);
});

test("a connection over which much was read is followed by another", async () => {
  server.call = () => ({ content: [{ type: "text", text: "x".repeat(6 * 1024 ** 2) }] });
  for (let round = 0; round < 7; round += 1) await call(peer());
  expect(opened()).toBe(2);
});

test("a server that is there is there, whatever it answers", async () => {
  for (const generation of ["2025-11-25", "2026-07-28"] as const) {
    server.generation = generation;
    await connections.use(peer({ key: generation }), (connection) => connection.ping(5_000));
  }
});
