/**
 * Handles CONNECT. A tunnel opens only for TLS whose server name is the requested host, so the other end gets exactly
 * the allowed name. The content of TLS is not read. A tunnel to port 80 carries plain HTTP, as some programs send it;
 * `forward.ts` checks each of its requests.
 */
import type { IncomingMessage } from "node:http";
import type { Socket } from "node:net";
import { HTTP_PORT, parseAuthority, parseHostName } from "./allowlist.ts";
import { ACCESS_DENIED_ALERT, type Hello, MAX_HELLO_BYTES, readHello } from "./client-hello.ts";
import type { Client, OnDenied } from "./clients.ts";
import { asDenial, Denial } from "./denials.ts";
import { dial, type AllowedNameResolver } from "./destination.ts";

export interface TunnelDeps {
  names: AllowedNameResolver;
  /** Serves plain HTTP for this host inside a tunnel. */
  serveHttp: (socket: Socket, client: Client, name: string) => void;
  denied: OnDenied;
}

const HELLO_TIMEOUT_MS = 10_000;
/** Time for a denied client to read the reason. */
const LINGER_MS = 5_000;
/** Idle timeout of a tunnel: long enough for long polls and idle streams, and ends abandoned connections. */
const IDLE_MS = 10 * 60_000;
const ESTABLISHED = "HTTP/1.1 200 Connection established\r\n\r\n";

export async function tunnel(
  deps: TunnelDeps,
  client: Client,
  { url = "" }: IncomingMessage,
  socket: Socket,
  head: Buffer,
): Promise<void> {
  socket.on("error", () => socket.destroy());
  let target: string | undefined;
  try {
    const authority = parseAuthority(url);
    if (authority === undefined) throw new Denial("bad_request", "CONNECT requires host:port.");
    target = `${authority.host}:${authority.port}`;
    const name = await client.checkDestination(socket, authority.host, authority.port);
    const destination = { name, port: authority.port, addresses: await deps.names.resolve(name) };
    if (destination.port === HTTP_PORT) {
      socket.write(ESTABLISHED);
      socket.unshift(head);
      deps.serveHttp(socket, client, name);
      return;
    }
    const upstream = await dial(destination, client.signal);
    client.track(upstream);
    socket.on("close", () => upstream.destroy());
    if (socket.destroyed) {
      upstream.destroy();
      return;
    }
    socket.write(ESTABLISHED);
    const { hello, bytes } = await receiveHello(socket, head);
    if (!isFor(hello, name)) {
      deps.denied(client, new Denial("wrong_server_name", name), target);
      socket.end(ACCESS_DENIED_ALERT);
      linger(socket);
      upstream.destroy();
      return;
    }
    upstream.on("close", () => socket.destroySoon());
    if (upstream.destroyed) {
      socket.destroy();
      return;
    }
    upstream.write(bytes);
    for (const end of [socket, upstream]) end.setTimeout(IDLE_MS, () => end.destroy());
    socket.pipe(upstream);
    upstream.pipe(socket);
  } catch (error) {
    const denial = asDenial(error, url);
    deps.denied(client, denial, target);
    socket.end(denial.bytes);
    linger(socket);
  }
}

function isFor(hello: Hello, name: string): boolean {
  return hello.state === "complete" && hello.serverName !== null && parseHostName(hello.serverName) === name;
}

/** Reads until the hello is complete or malformed, and returns all bytes read. A slow client counts as malformed. */
function receiveHello(socket: Socket, head: Buffer): Promise<{ hello: Hello; bytes: Buffer }> {
  return new Promise((resolve) => {
    let bytes = head;
    const finish = (hello: Hello) => {
      clearTimeout(deadline);
      socket.off("data", more);
      socket.off("end", giveUp);
      socket.off("close", giveUp);
      socket.pause();
      resolve({ hello, bytes });
    };
    const giveUp = () => finish({ state: "malformed" });
    const more = (part: Buffer) => {
      bytes = Buffer.concat([bytes, part]);
      const hello = readHello(bytes);
      if (hello.state !== "incomplete") finish(hello);
      // A hello that is split into tiny records takes many times its own size.
      else if (bytes.length > 2 * MAX_HELLO_BYTES) giveUp();
    };
    const deadline = setTimeout(giveUp, HELLO_TIMEOUT_MS);
    socket.on("data", more);
    socket.on("end", giveUp);
    socket.on("close", giveUp);
    more(Buffer.alloc(0));
  });
}

/** Lets the response arrive: drops incoming bytes for a limited time before the connection closes. */
function linger(socket: Socket): void {
  socket.resume();
  const deadline = setTimeout(() => socket.destroy(), LINGER_MS);
  socket.once("close", () => clearTimeout(deadline));
}
