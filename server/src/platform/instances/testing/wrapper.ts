/** The programs that serve handlers, as ordinary processes of this host: what is tested is what machines run. */
import { type ChildProcess, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { type AddressInfo, createServer } from "node:net";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

export type Runtime = "nodejs" | "python";

export const wrappers = fileURLToPath(new URL("../../../../../templates/functions", import.meta.url));

export interface Served {
  url: string;
  /** Records of the wrapper, and plain lines as `{ plain }`. */
  said: Record<string, unknown>[];
  child: ChildProcess;
  /** Once a record fits. */
  saying(fits: (record: Record<string, unknown>) => boolean): Promise<Record<string, unknown>>;
  /** Its exit code. */
  ended: Promise<number | null>;
}

/** Runs until the test takes it away; `isUp`: false where it is to end by itself. */
export async function serve(
  directory: string,
  runtime: Runtime,
  code: string,
  { env = {}, isUp = true }: { env?: Record<string, string>; isUp?: boolean } = {},
): Promise<Served> {
  const extension = runtime === "nodejs" ? "mjs" : "py";
  const file = join(directory, `handler-${randomBytes(4).toString("hex")}.${extension}`);
  writeFileSync(file, code);
  const port = await freePort();
  const program = runtime === "nodejs" ? process.execPath : "python3";
  const child = spawn(program, [join(wrappers, runtime, `main.${extension}`)], {
    env: {
      PATH: process.env["PATH"] ?? "",
      PYTHONDONTWRITEBYTECODE: "1",
      KONTOR_HANDLER: file,
      PORT: String(port),
      ...env,
    },
    stdio: ["ignore", "pipe", "pipe"],
  });
  const said: Record<string, unknown>[] = [];
  const heard = new Set<() => void>();
  const hear = (line: string) => {
    said.push(
      line.startsWith("\u001e") ? (JSON.parse(line.slice(1)) as Record<string, unknown>) : { plain: line },
    );
    for (const listener of heard) listener();
  };
  for (const stream of [child.stdout, child.stderr]) {
    let rest = "";
    stream.setEncoding("utf8").on("data", (text: string) => {
      const lines = (rest + text).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) hear(line);
    });
  }
  const ended = once(child, "close").then(([code]) => code as number | null);
  const saying = (fits: (record: Record<string, unknown>) => boolean) =>
    new Promise<Record<string, unknown>>((resolve, reject) => {
      const look = () => {
        const found = said.find(fits);
        if (found === undefined) return;
        heard.delete(look);
        resolve(found);
      };
      heard.add(look);
      void ended.then(() => reject(new Error(`it ended; it said ${JSON.stringify(said)}`)));
      look();
    });
  if (isUp) await saying(({ k }) => k === "ready");
  return { url: `http://127.0.0.1:${port}`, said, child, saying, ended };
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, "close");
  return port;
}
