/**
 * Two indexes of Python packages (PEP 503) inside the namespace that simulates the internet. The open index uses plain
 * HTTP. The closed index uses TLS, requires a password and has a token in its path. A DNS server resolves every name to
 * the closed index. Each request reads the directory again. The program ends when its stdin closes.
 *
 * node index-servers.ts <directory> <open address> <closed address> <key> <certificate> <user:password> <token>
 *
 * Wheels lie at `<directory>/<open|closed>/<project>/<wheel>`.
 */
import { createSocket } from "node:dgram";
import { readdirSync, readFileSync } from "node:fs";
import http, { type IncomingMessage, type ServerResponse } from "node:http";
import https from "node:https";
import { join } from "node:path";

const [
  directory = "",
  openAddress,
  closedAddress = "",
  key = "",
  certificate = "",
  credentials = "",
  token = "",
] = process.argv.slice(2);

function serve(root: string, prefix: string, mayAsk: (request: IncomingMessage) => boolean) {
  return (request: IncomingMessage, response: ServerResponse) => {
    const { url = "" } = request;
    const [kind, project = "", wheel] = url.slice(prefix.length + 1).split("/");
    try {
      if (!mayAsk(request)) return response.writeHead(401, { "WWW-Authenticate": "Basic" }).end();
      if (!url.startsWith(`${prefix}/`)) return response.writeHead(404).end();
      const folder = join(root, project);
      if (kind === "files" && wheel) return response.end(readFileSync(join(folder, wheel)));
      const links = readdirSync(folder).map(
        (name) => `<a href="${prefix}/files/${project}/${name}">${name}</a>`,
      );
      return response.setHeader("Content-Type", "text/html").end(`<!DOCTYPE html>${links.join("\n")}`);
    } catch {
      return response.writeHead(404).end();
    }
  };
}

const basic = `Basic ${Buffer.from(credentials).toString("base64")}`;
const open = http.createServer(serve(join(directory, "open"), "", () => true));
const closed = https.createServer(
  { key: readFileSync(key), cert: readFileSync(certificate) },
  serve(join(directory, "closed"), `/${token}`, ({ headers }) => headers.authorization === basic),
);
closed.on("tlsClientError", () => {});

const names = createSocket("udp4").on("message", (query, { port, address }) => {
  // A query ends with the name's empty label, its type and its class (RFC 1035, 4.1.2).
  const end = query.indexOf(0, 12) + 5;
  const isAddress = query.readUInt16BE(end - 4) === 1;
  const record = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, ...closedAddress.split(".").map(Number)];
  const answer = Buffer.concat([query.subarray(0, end), Buffer.from(isAddress ? record : [])]);
  answer.writeUInt16BE(0x8580, 2);
  answer.writeUInt16BE(isAddress ? 1 : 0, 6);
  answer.writeUInt32BE(0, 8);
  names.send(answer, port, address);
});

await new Promise<void>((resolve) => open.listen(80, openAddress, resolve));
await new Promise<void>((resolve) => closed.listen(443, closedAddress, resolve));
names.bind(53, openAddress, () => process.stdout.write("ready\n"));
process.stdin.resume().on("end", () => process.exit());
