/** Runs the wrapper programs as processes of this host. Machines run the same programs. */
import { type ChildProcess, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { type AddressInfo, createServer } from "node:net";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

export type Runtime = "nodejs" | "python";

export const wrappers = fileURLToPath(new URL("../../../../../templates/functions", import.meta.url));

export interface ServedHandler {
  url: string;
  /** Records that the wrapper wrote. A plain line is in the form `{ plain }`. */
  records: Record<string, unknown>[];
  child: ChildProcess;
  /** Resolves to the first record that matches. */
  waitForRecord(fits: (record: Record<string, unknown>) => boolean): Promise<Record<string, unknown>>;
  /** Resolves to the exit code of the process. */
  ended: Promise<number | null>;
}

/**
 * Starts a wrapper program that runs until the test ends it. With `isUp: false`, the process is expected to end by
 * itself.
 */
export async function serve(
  directory: string,
  runtime: Runtime,
  code: string,
  { env = {}, isUp = true }: { env?: Record<string, string>; isUp?: boolean } = {},
): Promise<ServedHandler> {
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
  const records: Record<string, unknown>[] = [];
  const listeners = new Set<() => void>();
  const receive = (line: string) => {
    records.push(
      line.startsWith("\u001e") ? (JSON.parse(line.slice(1)) as Record<string, unknown>) : { plain: line },
    );
    for (const listener of listeners) listener();
  };
  for (const stream of [child.stdout, child.stderr]) {
    let rest = "";
    stream.setEncoding("utf8").on("data", (text: string) => {
      const lines = (rest + text).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) receive(line);
    });
  }
  const ended = once(child, "close").then(([code]) => code as number | null);
  const waitForRecord = (fits: (record: Record<string, unknown>) => boolean) =>
    new Promise<Record<string, unknown>>((resolve, reject) => {
      const check = () => {
        const found = records.find(fits);
        if (found === undefined) return;
        listeners.delete(check);
        resolve(found);
      };
      listeners.add(check);
      void ended.then(() =>
        reject(new Error(`the process ended with the output ${JSON.stringify(records)}`)),
      );
      check();
    });
  if (isUp) await waitForRecord(({ k }) => k === "ready");
  return { url: `http://127.0.0.1:${port}`, records, child, waitForRecord, ended };
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, "close");
  return port;
}
