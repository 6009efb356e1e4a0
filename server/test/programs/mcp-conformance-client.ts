/**
 * Client for the protocol's conformance suite: lists a server's tools and calls each, like an agent's toolset.
 */
import { parseOpenedHosts } from "#lib/network/addresses.ts";
import { openMcp } from "#agent/mcp/open.ts";
import { modelFetch } from "#agent/models/fetch.ts";

/** Arguments of the tools in the scenarios. */
const values = { a: 5, b: 3 };

const url = process.argv.at(-1) ?? "";
const fetch = modelFetch(parseOpenedHosts(["localhost", "127.0.0.0/8", "::1"]));
const connection = await openMcp(
  { url, headers: {} },
  { fetch, timeoutMs: 10_000, onToolsChanged: () => {}, elicitation: "defaults" },
);
for (const { name, inputSchema } of await connection.tools(10_000)) {
  const signal = AbortSignal.timeout(15_000);
  await connection.call({ name, inputSchema }, values, { timeoutMs: 15_000, signal });
}
await connection.close();
