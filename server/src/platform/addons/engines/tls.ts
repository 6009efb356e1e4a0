/**
 * Server side of TLS in front of a database. A Redis client starts with the handshake; a PostgreSQL client requests it
 * first (Protocol, "SSL Session Encryption"). A PostgreSQL client without TLS gets an error that `psql` prints. TLS
 * ends here, so the private key is in no machine.
 */
import type { Socket } from "node:net";
import { type SecureContext, TLSSocket } from "node:tls";
import type { Kind } from "./engine.ts";

const sslRequest = 80_877_103;
const gssRequest = 80_877_104;
const cancelRequest = 80_877_102;
const headBytes = 8;

/**
 * Returns the connection's TLS socket. Returns undefined if the client does not use TLS, after sending it the error.
 * The caller must time out a silent client.
 */
export async function acceptTls(
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
      // Bytes after the request arrived unencrypted, and must not be treated as TLS data (CVE-2021-23214).
      if (socket.readableLength > 0) return undefined;
      socket.write("S");
      return secure(socket, context);
    } else if (code === cancelRequest) {
      // A cancel request contains only its connection's secret number. Older clients send the request without TLS.
      socket.unshift(head);
      return socket;
    } else {
      socket.end(errorResponse("This database requires TLS: connect with sslmode=require."));
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

/** Reads this many bytes. Returns undefined if the connection ends first. */
async function read(socket: Socket, bytes: number): Promise<Buffer | undefined> {
  for (;;) {
    const chunk = socket.read(bytes) as Buffer | null;
    if (chunk !== null) return chunk.length === bytes ? chunk : undefined;
    if (socket.destroyed || socket.readableEnded) return undefined;
    await new Promise<void>((resolve) => {
      const onEvent = () => {
        for (const event of ["readable", "end", "close", "error"]) socket.off(event, onEvent);
        resolve();
      };
      for (const event of ["readable", "end", "close", "error"]) socket.once(event, onEvent);
    });
  }
}

/** Returns a FATAL ErrorResponse: type and length, then fields of a letter and a text. */
function errorResponse(message: string): Buffer {
  const fields = Buffer.from(`SFATAL\0VFATAL\0C28000\0M${message}\0\0`);
  const head = Buffer.alloc(5);
  head.write("E");
  head.writeUInt32BE(fields.length + 4, 1);
  return Buffer.concat([head, fields]);
}
