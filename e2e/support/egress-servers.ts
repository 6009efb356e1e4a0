/**
 * An HTTPS server on the web address, inside the namespace that simulates the internet. Ends when its stdin closes.
 */
import { readFileSync } from "node:fs";
import https from "node:https";
import type { TLSSocket } from "node:tls";
import { WEB_ADDRESS } from "@kontor/runtime/network/testing/internet.ts";

const [key = "", cert = ""] = process.argv.slice(2);

/**
 * Responds with the host name of the request. `/redirect?<address>` redirects to that address; `/slow` never ends its
 * response.
 */
const server = https.createServer(
  { key: readFileSync(key), cert: readFileSync(cert) },
  (request, response) => {
    const [path, query = ""] = (request.url ?? "/").split("?");
    if (path === "/redirect") response.writeHead(302, { Location: decodeURIComponent(query) });
    response.write(
      `over TLS to ${String((request.socket as TLSSocket & { servername: string }).servername)}\n`,
    );
    if (path !== "/slow") response.end();
  },
);
server.on("tlsClientError", () => {});
server.listen(443, WEB_ADDRESS, () => process.stdout.write("ready\n"));
process.stdin.resume().on("end", () => process.exit());
