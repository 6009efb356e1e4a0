/**
 * The server's side of TLS before a database: for Redis it is what the client begins with, for PostgreSQL the client
 * asks for it first (Protocol, "SSL Session Encryption"). Who does not is told so in words that `psql` prints. It ends
 * here, so that the key is in no machine.
 */
import type { Socket } from "node:net";
import { type SecureContext, TLSSocket } from "node:tls";
import type { Kind } from "./engine.ts";

const sslRequest = 80_877_103;
const gssRequest = 80_877_104;
const cancelRequest = 80_877_102;
const headBytes = 8;

/** Undefined where the client wants none; it has been told. A client that says nothing is the caller's to end. */
export async function encrypted(
  socket: Socket,
  kind: Kind,
  context: SecureContext,
): Promise<Socket | undefined> {
  if (kind === "redis") return secure(socket, context);
  for (;;) {
    const head = await read(socket, headBytes);
    if (!head) return undefined;
    const code = head.readUInt32BE(4);
    if (code === gssRequest) {
      socket.write("N");
    } else if (code === sslRequest) {
      // What came with the request came unencrypted, and would be taken for what comes by TLS (CVE-2021-23214).
      if (socket.readableLength > 0) return undefined;
      socket.write("S");
      return secure(socket, context);
    } else if (code === cancelRequest) {
      // It carries a number that only its connection was told, and nothing else; older clients send it as it is.
      socket.unshift(head);
      return socket;
    } else {
      socket.end(errorResponse("This database is reached by TLS alone: connect with sslmode=require."));
      return undefined;
    }
  }
}

function secure(socket: Socket, secureContext: SecureContext): Promise<Socket | undefined> {
  const encrypting = new TLSSocket(socket, { isServer: true, secureContext });
  return new Promise((resolve) => {
    encrypting.once("secure", () => resolve(encrypting));
    encrypting.once("error", () => resolve(undefined));
    encrypting.once("close", () => resolve(undefined));
  });
}

/** Undefined where it ends before. */
async function read(socket: Socket, bytes: number): Promise<Buffer | undefined> {
  for (;;) {
    const chunk = socket.read(bytes) as Buffer | null;
    if (chunk !== null) return chunk.length === bytes ? chunk : undefined;
    if (socket.destroyed || socket.readableEnded) return undefined;
    await new Promise<void>((resolve) => {
      const done = () => {
        for (const event of ["readable", "end", "close", "error"]) socket.off(event, done);
        resolve();
      };
      for (const event of ["readable", "end", "close", "error"]) socket.once(event, done);
    });
  }
}

/** A FATAL ErrorResponse: type, length, then fields of a letter and a text. */
function errorResponse(message: string): Buffer {
  const fields = Buffer.from(`SFATAL\0VFATAL\0C28000\0M${message}\0\0`);
  const head = Buffer.alloc(5);
  head.write("E");
  head.writeUInt32BE(fields.length + 4, 1);
  return Buffer.concat([head, fields]);
}
