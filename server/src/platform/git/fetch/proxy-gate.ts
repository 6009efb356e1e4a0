/**
 * SOCKS 5 proxy (RFC 1928, 1929) on loopback, through which every fetch over http connects. The proxy exists for one
 * checkout and requires a password. Git sends the host name to the proxy. The proxy resolves the name, vets every
 * address, and connects to a vetted address. So no changed DNS record, redirect or server that a repository names leads
 * to a forbidden address.
 */
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import net, { type AddressInfo, type Socket } from "node:net";
import type { OpenedHosts } from "#lib/network/addresses.ts";
import { allowedAddresses } from "#lib/network/allowed-addresses.ts";

export interface GateOptions {
  /** Id of the workspace that DNS look-ups are counted for. */
  owner: string;
  opened: OpenedHosts;
  /** True for plain http, which is limited to hosts that the operator allowed, public or private. */
  onlyOpened: boolean;
  /** Limit of received bytes over all connections. */
  maxBytes: number;
}

const connectTimeoutMs = 15_000;
const idleMs = 120_000;
/** Limit of a handshake in bytes, above the longest greeting, sign-in and request together. */
const handshakeMaxBytes = 1024;
/** Limit of connections. Git opens one or two at a time, and a fetch of many repositories opens them in sequence. */
const maxConnections = 16;

/** Reply codes of RFC 1928, section 6. */
const refusedByRules = 2;
const hostUnreachable = 4;

export class Gate {
  readonly #options: GateOptions;
  readonly #server: net.Server;
  readonly #sockets = new Set<Socket>();
  readonly #password = randomBytes(16).toString("hex");
  #bytes = 0;
  /** Reason of a connection that was refused or aborted, for the project's owner. */
  refusal: string | undefined;

  private constructor(options: GateOptions) {
    this.#options = options;
    this.#server = net.createServer((socket) => void this.#serve(socket));
    this.#server.maxConnections = maxConnections;
  }

  static async open(options: GateOptions): Promise<Gate> {
    const gate = new Gate(options);
    gate.#server.listen(0, "127.0.0.1");
    await once(gate.#server, "listening");
    return gate;
  }

  /** Value for git's `http.proxy`. */
  get address(): string {
    return `socks5h://git:${this.#password}@127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async close(): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    this.#server.close();
    await once(this.#server, "close");
  }

  async #serve(client: Socket): Promise<void> {
    this.#track(client);
    try {
      const read = reader(client);
      const [version, count = 0] = await read(2);
      const methods = await read(count);
      if (version !== 5 || !methods.includes(2)) return void client.end(Buffer.from([5, 0xff]));
      client.write(Buffer.from([5, 2]));
      const [, nameLength = 0] = await read(2);
      await read(nameLength);
      const [passwordLength = 0] = await read(1);
      const isKnown = (await read(passwordLength)).toString() === this.#password;
      if (!isKnown) return void client.end(Buffer.from([1, 1]));
      client.write(Buffer.from([1, 0]));
      const [, command, , kind] = await read(4);
      const host = await readHost(read, kind ?? 0);
      const port = (await read(2)).readUInt16BE();
      if (command !== 1 || host === undefined) return void client.end(reply(7));
      await this.#connect(client, host, port, read.rest());
    } catch {
      client.destroy();
    }
  }

  async #connect(client: Socket, host: string, port: number, early: Buffer): Promise<void> {
    const { opened, owner, onlyOpened } = this.#options;
    let addresses: string[];
    try {
      addresses = await allowedAddresses(opened, host, { owner, onlyOpened });
    } catch (error) {
      this.refusal = (error as Error).message;
      return void client.end(reply(refusedByRules));
    }
    const upstream = await dial(addresses, port);
    if (upstream === undefined || client.destroyed) {
      upstream?.destroy();
      this.refusal ??= `${host} does not respond.`;
      return void client.end(reply(hostUnreachable));
    }
    this.#track(upstream);
    client.write(reply(0));
    upstream.write(early);
    upstream.on("data", (piece: Buffer) => {
      this.#bytes += piece.length;
      if (this.#bytes <= this.#options.maxBytes) return;
      this.refusal = "the repository is larger than the limit of a checkout.";
      upstream.destroy();
      client.destroy();
    });
    client.pipe(upstream);
    upstream.pipe(client);
    upstream.on("close", () => client.destroy());
    client.on("close", () => upstream.destroy());
  }

  #track(socket: Socket): void {
    this.#sockets.add(socket);
    socket.on("close", () => this.#sockets.delete(socket));
    socket.on("error", () => socket.destroy());
    socket.setTimeout(idleMs, () => socket.destroy());
  }
}

async function dial(addresses: readonly string[], port: number): Promise<Socket | undefined> {
  for (const host of addresses.slice(0, 3)) {
    const socket = net.connect({ host, port, noDelay: true });
    const timer = setTimeout(() => socket.destroy(), connectTimeoutMs);
    const reached = await new Promise<boolean>((resolve) => {
      socket.once("connect", () => resolve(true));
      socket.once("error", () => resolve(false));
      socket.once("close", () => resolve(false));
    });
    clearTimeout(timer);
    if (reached) return socket;
  }
  return undefined;
}

type Read = ((bytes: number) => Promise<Buffer>) & { rest: () => Buffer };

/**
 * Returns a function that reads a handshake step by step. The function's `rest` returns the bytes after the handshake.
 */
function reader(socket: Socket): Read {
  let buffered = Buffer.alloc(0);
  let total = 0;
  let wake: () => void = () => {};
  const take = (piece: Buffer) => {
    buffered = Buffer.concat([buffered, piece]);
    total += piece.length;
    if (total > handshakeMaxBytes) socket.destroy();
    wake();
  };
  const wakeUp = () => wake();
  socket.on("data", take);
  socket.on("close", wakeUp);
  const read = async (bytes: number) => {
    while (buffered.length < bytes) {
      if (socket.destroyed) throw new Error("the client disconnected");
      await new Promise<void>((resolve) => (wake = resolve));
    }
    const piece = buffered.subarray(0, bytes);
    buffered = buffered.subarray(bytes);
    return piece;
  };
  return Object.assign(read, {
    rest: () => {
      socket.off("data", take);
      socket.off("close", wakeUp);
      socket.pause();
      return buffered;
    },
  });
}

async function readHost(read: Read, kind: number): Promise<string | undefined> {
  if (kind === 1) return [...(await read(4))].join(".");
  if (kind === 3) return (await read((await read(1))[0] ?? 0)).toString("latin1");
  if (kind !== 4) return undefined;
  return (await read(16)).toString("hex").replaceAll(/(.{4})(?!$)/g, "$1:");
}

function reply(code: number): Buffer {
  return Buffer.from([5, code, 0, 1, 0, 0, 0, 0, 0, 0]);
}
