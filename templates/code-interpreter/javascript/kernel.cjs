/**
 * A JavaScript or TypeScript kernel made of tslab's parts: `node kernel.cjs javascript|typescript <connection file>`.
 * tslab's own prints the value of a cell's last expression and whatever goes wrong as output; cells that come over an
 * API need both as data.
 */
"use strict";
// Compiled when the image is made: the compiler is large, and reading it is half of a kernel's start.
require("node:module").enableCompileCache("/usr/local/lib/kontor-code/cache");
const { inspect } = require("node:util");
const { createConverter } = require("tslab/dist/converter.js");
const { createExecutor } = require("tslab/dist/executor.js");
const { JupyterHandlerImpl, ZmqServer } = require("tslab/dist/jupyter.js");

const [language, connectionFile] = process.argv.slice(2);
const isJS = language === "javascript";
const ERROR = "application/vnd.kontor.error+json";
/** Name in an `execute_request` of the cell's own environment. */
const CELL_ENV = "kontor_env";
/** Longer ones are looked at as text. */
const MAX_JSON_CHARACTERS = 1_000_000;

const converter = createConverter({ isJS, isBrowser: false });
/** Where the cell that runs puts what it has to say. */
let display = () => {};
/** What the compiler says of a cell comes a line at a time. */
let complaints = [];

const executor = createExecutor(
  process.cwd(),
  { node: converter, browser: converter, close: () => converter.close() },
  {
    log: (value) => display(representations(value)),
    error: (...said) => {
      if (said.length === 1) display({ [ERROR]: asError(said[0]) });
      else complaints.push(said);
    },
  },
);

class Handler extends JupyterHandlerImpl {
  #count = 0;

  /** tslab's drops what comes within 200 ms after a failed cell; here one cell comes after the other anyway. */
  async handleExecute(request, writeStream, writeDisplayData) {
    process.stdout.write = this.createWriteToIopub("stdout", writeStream);
    process.stderr.write = this.createWriteToIopub("stderr", writeStream);
    display = (data) => writeDisplayData({ data, metadata: {}, transient: {} }, false);
    require("tslab/dist/jupyter.js").lastWriteDisplayData = writeDisplayData;
    complaints = [];
    this.#count += 1;
    const restore = setEnvironment(request[CELL_ENV] ?? {});
    const isOk = await executor
      .execute(request.code)
      .catch((error) => {
        display({ [ERROR]: asError(error) });
        return false;
      })
      .finally(restore);
    if (complaints.length > 0) display({ [ERROR]: compileError(complaints) });
    return { status: isOk ? "ok" : "error", execution_count: this.#count };
  }
}

/** The server of the same channels, on sockets in the file system as ZeroMQ names them. */
class Server extends ZmqServer {
  bindSocket(socket, port) {
    return socket.bind(`${this.connInfo.transport}://${this.connInfo.ip}-${port}`);
  }
}

/** Returns the function that gives each variable the value that it had. */
function setEnvironment(env) {
  const before = Object.keys(env).map((name) => [name, process.env[name]]);
  Object.assign(process.env, env);
  return () => {
    for (const [name, value] of before) {
      if (value === undefined) delete process.env[name];
      else process.env[name] = value;
    }
  };
}

function representations(value) {
  const text = typeof value === "string" ? value : inspect(value);
  const json = asJson(value);
  return { "text/plain": text, ...(json === undefined ? {} : { "application/json": json }) };
}

/** Arrays and plain objects that JSON can say as they are. */
function asJson(value) {
  const prototype = typeof value === "object" && value !== null ? Object.getPrototypeOf(value) : undefined;
  if (!Array.isArray(value) && prototype !== Object.prototype) return undefined;
  try {
    const text = JSON.stringify(value);
    return text.length <= MAX_JSON_CHARACTERS ? JSON.parse(text) : undefined;
  } catch {
    return undefined;
  }
}

function asError(error) {
  if (!(error instanceof Error)) return { name: "Error", value: inspect(error), traceback: [] };
  return { name: error.name, value: error.message, traceback: (error.stack ?? "").split("\n") };
}

/** tslab hands over a format, then file, line, column and text. */
function compileError(all) {
  const traceback = all.map(([, file, line, column, text]) => `${file}${line}:${column} - ${text}`);
  return { name: isJS ? "SyntaxError" : "TypeScriptError", value: String(all[0].at(-1)), traceback };
}

process.on("SIGINT", () => executor.interrupt());
for (const event of ["uncaughtException", "unhandledRejection"]) {
  process.on(event, (error) => process.stderr.write(`${event}: ${inspect(error)}\n`));
}
void new Server(new Handler(executor, isJS), connectionFile).init();
