/**
 * Programs inside a namespace that run for a while: a server that replies, and a client that keeps a connection open.
 */
import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";

const SERVER = `const [, says, ...ports] = process.argv;
let left = ports.length; const sockets = new Set();
for (const port of ports) require("net").createServer((s) => {
  sockets.add(s);
  s.on("error", (e) => console.log(e.code)); s.on("close", () => sockets.delete(s));
  s.on("data", (d) => { if (!String(d).startsWith("GET")) s.write(d); });
  s.write(says + " sees " + s.remoteAddress.replace("::ffff:", ""));
}).listen(Number(port), () => { if (--left === 0) console.log("ready"); });
process.stdin.on("data", (d) => { for (const s of sockets) s.write(d); });`;

const CLIENT = `const [, host, port] = process.argv;
const s = require("net").connect(Number(port), host);
s.on("data", (d) => process.stdout.write(d)); s.on("error", (e) => process.stdout.write(e.code));
process.stdin.on("data", (d) => s.write(d));`;

export interface NamespaceProgram {
  /** Returns the program's next output. */
  next(): Promise<string>;
  /** Sends the text to a client's peer, or to all clients of a server. */
  send(text: string): void;
  end(): Promise<void>;
}

/**
 * Starts a server that sends each client the server's name and the client's address, and then the client's input.
 * Prints error codes.
 */
export async function serveIn(
  netnsPath: string,
  says: string,
  ...ports: number[]
): Promise<NamespaceProgram> {
  const server = start(netnsPath, SERVER, [says, ...ports.map(String)]);
  await server.next();
  return server;
}

/** Starts a client that prints received text, or the error's code. */
export function connectIn(netnsPath: string, host: string, port: number): NamespaceProgram {
  return start(netnsPath, CLIENT, [host, String(port)]);
}

/** Runs a script of the test inside the namespace. */
export function runIn(netnsPath: string, script: string): NamespaceProgram {
  return start(netnsPath, script, []);
}

function start(netnsPath: string, script: string, args: string[]): NamespaceProgram {
  const argv = [`--net=${netnsPath}`, process.execPath, "-e", script, ...args];
  const child: ChildProcess = spawn("nsenter", argv, { stdio: ["pipe", "pipe", "inherit"] });
  const pieces: string[] = [];
  let arrived = Promise.withResolvers<void>();
  child.stdout?.on("data", (data: Buffer) => {
    pieces.push(data.toString());
    arrived.resolve();
    arrived = Promise.withResolvers<void>();
  });
  return {
    async next() {
      while (pieces.length === 0) await arrived.promise;
      return pieces.splice(0).join("").trim();
    },
    send: (text) => void child.stdin?.write(text),
    async end() {
      if (child.exitCode !== null || child.signalCode !== null) return;
      const exited = once(child, "exit");
      child.kill("SIGKILL");
      await exited;
    },
  };
}
