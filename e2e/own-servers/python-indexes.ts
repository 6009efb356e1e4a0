/**
 * Indexes of Python packages in their own namespace, joined to the host by a veth pair as an uplink, and the pip
 * configuration for these indexes.
 */
import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { mkdtempSync } from "node:fs";
import { mkdir, readFile, rm, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run } from "@kontor/runtime/exec.ts";
import { UndoStack } from "@kontor/runtime/undo.ts";

export interface PythonIndexes {
  /** Name of the uplink of a server that may reach only these indexes. `resolver` is the address of its DNS server. */
  uplink: string;
  resolver: string;
  /** Path of pip's configuration file. */
  config: string;
  /** Secrets in the configuration. */
  secrets: string[];
  /** Replaces the wheel of a version by a wheel whose module returns `text`. Returns its SHA-256. */
  put(index: "open" | "closed", project: string, version: string, text: string): Promise<string>;
  close(): Promise<void>;
}

const name = "kindexes";
/** First of eight addresses for documentation, which the run's internet leaves free: its route is less specific. */
const host = "198.51.100.70";
const open = "198.51.100.65";
const closed = "198.51.100.66";
const wheelTime = new Date(2026, 0);
const password = "pa55-w0rd-canary";
const token = "t0ken-canary-4711";

export async function startIndexes(): Promise<PythonIndexes> {
  const undo = new UndoStack();
  try {
    return await start(undo);
  } catch (error) {
    await undo.unwind();
    throw error;
  }
}

async function start(undo: UndoStack): Promise<PythonIndexes> {
  const directory = mkdtempSync(join(tmpdir(), "kontor-indexes-"));
  undo.add("directory", () => rm(directory, { recursive: true }));
  const at = (file: string) => join(directory, file);
  const made =
    "openssl req -x509 -nodes -days 2 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -subj /CN=tests";
  const address = ["-addext", "subjectAltName=DNS:closed.test"];
  await run([...made.split(" "), ...address, "-keyout", at("key.pem"), "-out", at("authority.pem")]);
  // A leftover of a killed test would make the creation fail midway.
  await run(["ip", "netns", "del", name], { okCodes: [0, 1] });
  undo.add("namespace", () => run(["ip", "netns", "del", name]));
  await run(["ip", "netns", "add", name]);
  await run(["ip", "-batch", "-"], { stdin: hostSide });
  await run(["ip", "-n", name, "-batch", "-"], { stdin: farSide });
  const program = join(import.meta.dirname, "index-servers.ts");
  const given = [directory, open, closed, at("key.pem"), at("authority.pem"), `reader:${password}`, token];
  const argv = [`--net=/run/netns/${name}`, process.execPath, program, ...given];
  const child = spawn("nsenter", argv, { stdio: ["pipe", "pipe", "inherit"] });
  undo.add("servers", async () => {
    if (child.exitCode !== null || child.signalCode !== null) return;
    const exited = once(child, "exit");
    child.kill("SIGKILL");
    await exited;
  });
  await Promise.race([
    once(child.stdout, "data"),
    once(child, "exit").then(() => Promise.reject(new Error("the indexes ended"))),
  ]);
  await writeFile(
    at("pip.conf"),
    `[global]
index-url = http://${open}/simple
extra-index-url =
    https://reader:${password}@closed.test/${token}/simple
trusted-host = ${open}
cert = ${at("authority.pem")}
`,
  );
  return {
    uplink: name,
    resolver: open,
    config: at("pip.conf"),
    secrets: [password, token],
    put: async (index, project, version, text) => {
      const wheel = join(directory, index, project, `${project}-${version}-py3-none-any.whl`);
      await mkdir(join(directory, index, project), { recursive: true });
      await makeWheel(at("wheel"), wheel, { project, version, text });
      return createHash("sha256")
        .update(await readFile(wheel))
        .digest("hex");
    },
    async close() {
      const [failure] = await undo.unwind();
      if (failure) throw failure.error;
    },
  };
}

const hostSide = `link add ${name} type veth peer name eth0 netns ${name}
addr add ${host}/29 dev ${name}
link set ${name} up
`;
const farSide = `link set lo up
link set eth0 up
addr add ${open}/29 dev eth0
addr add ${closed}/29 dev eth0
`;

/** Makes a wheel of a package with one module that has one constant. */
async function makeWheel(
  work: string,
  wheel: string,
  { project, version, text }: { project: string; version: string; text: string },
): Promise<void> {
  const info = `${project}-${version}.dist-info`;
  const files = {
    [`${project}.py`]: `says = ${JSON.stringify(text)}\n`,
    [`${info}/METADATA`]: `Metadata-Version: 2.1\nName: ${project}\nVersion: ${version}\n`,
    [`${info}/WHEEL`]: "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    [`${info}/RECORD`]: `${project}.py,,\n${info}/METADATA,,\n${info}/WHEEL,,\n${info}/RECORD,,\n`,
  };
  await rm(work, { recursive: true, force: true });
  await mkdir(join(work, info), { recursive: true });
  for (const [file, content] of Object.entries(files)) {
    await writeFile(join(work, file), content);
    // The fixed time makes wheels of equal contents equal.
    await utimes(join(work, file), wheelTime, wheelTime);
  }
  await utimes(join(work, info), wheelTime, wheelTime);
  await rm(wheel, { force: true });
  await run(["python3", "-m", "zipfile", "-c", wheel, `${project}.py`, info], { cwd: work });
}
