/**
 * The server processes of the proxy benchmark. `upstream` responds with 1 KB to each request. `ingress <port>` is the
 * ingress in front of an app on that port of this host, over TCP. The ingress benchmark measures a machine's tunnel.
 *
 * Each process prints its port.
 */
import { once } from "node:events";
import http from "node:http";
import net, { type AddressInfo, BlockList } from "node:net";
import { AppSites } from "@kontor/server/ingress/sites/apps.ts";
import { Ingress } from "@kontor/server/ingress/ingress.ts";
import { Upstreams } from "@kontor/server/ingress/sites/upstreams.ts";

const [kind, upstreamPort] = process.argv.slice(2);
const server = kind === "upstream" ? upstream() : ingress(Number(upstreamPort));
server.listen(0, "127.0.0.1", () => {
  process.stdout.write(`${(server.address() as AddressInfo).port}\n`);
});

function upstream(): http.Server {
  const body = Buffer.alloc(1024, "a");
  const one = http.createServer((_request, response) => {
    response.writeHead(200, { "content-type": "text/plain", "content-length": body.length }).end(body);
  });
  one.keepAliveTimeout = 60_000;
  return one;
}

function ingress(port: number): http.Server {
  const upstreams = new Upstreams(async () => {
    const socket = net.connect({ host: "127.0.0.1", port, noDelay: true });
    await once(socket, "connect");
    return socket;
  });
  const route = { environmentId: "bench", state: "live", machine: "bench", port } as const;
  const sites = new AppSites({
    domain: "apps.test",
    apps: { find: () => route, wake: async () => {}, recordResponse: () => {} },
    custom: { generatedOf: () => undefined },
    upstreams,
  });
  const way = new Ingress({
    rules: [sites],
    domains: ["apps.test"],
    apiHost: null,
    certificates: null,
    tlsSuffix: "",
    trustedProxies: new BlockList(),
    log: () => {},
  });
  return way.createServer({
    handle: (_request, response) => void response.end(),
    upgrade: (_request, socket) => void socket.destroy(),
    clientError: (_error, socket) => void socket.destroy(),
    options: { keepAliveTimeout: 60_000, requestTimeout: 0 },
  });
}
