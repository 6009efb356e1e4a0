/**
 * Serves one handler: `export default async (request, { waitUntil, requestId }) => Response`. It listens on loopback
 * and handles all requests at once. On standard output, it reports when it is ready and whether tasks run behind the
 * responses. It has no admission control: the server decides before it which requests come in.
 */
import { createServer } from "node:http";
import { enableCompileCache } from "node:module";
import { pathToFileURL } from "node:url";
import { exchange } from "./exchange.mjs";
import { current, described, say, takeConsole, tell } from "./log.mjs";
import { rehearse } from "./rehearsal.mjs";

const { env } = process;
const limits = {
  timeoutMs: Number(env.KONTOR_TIMEOUT_MS ?? 30_000),
  maxBody: Number(env.KONTOR_MAX_BODY ?? 6 * 1024 ** 2),
};
const port = Number(env.PORT ?? 8080);
const handlerFile = env.KONTOR_HANDLER ?? "/app/handler.mjs";
const cacheDirectory = env.KONTOR_CODE_CACHE;

takeConsole();
// A rejected promise that no code awaits must not end the other requests.
process.on("unhandledRejection", (reason) => say("error", `Unhandled rejection: ${described(reason)}`));
process.on("uncaughtException", (error) => {
  say("error", `Uncaught: ${described(error)}`);
  process.exit(1);
});

if (cacheDirectory) enableCompileCache(cacheDirectory);
const serving = { maxHeaderSize: 80 * 1024, requestTimeout: 0, headersTimeout: 0 };
// Runs before the handler's code, which may change globals.
await rehearse(serving, limits);
const handler = await load();
const server = createServer(serving);
// Longer than the server keeps a connection, so the server closes it first.
server.keepAliveTimeout = 120_000;
server.on("request", (incoming, outgoing) => {
  void exchange(handler, { incoming, outgoing, limits, waitUntil });
});
server.listen(port, "127.0.0.1", () => tell({ k: "ready" }));

async function load() {
  try {
    const module = await import(pathToFileURL(handlerFile).href);
    // The `default` of a CommonJS module is one level deeper.
    const found = module.default?.default ?? module.default;
    if (typeof found !== "function") {
      throw new TypeError("The handler has to be the default export: export default async (request) => …");
    }
    return found;
  } catch (error) {
    say("error", described(error));
    tell({ k: "failed" });
    process.exit(1);
  }
}

let pending = 0;

/** The instance stays awake until this settles, or as long as a request may take. */
function waitUntil(work) {
  const requestId = current.getStore()?.requestId;
  let isOver = false;
  const over = () => {
    if (isOver) return;
    isOver = true;
    clearTimeout(late);
    pending -= 1;
    if (pending === 0) tell({ k: "wait", n: 0 });
  };
  const late = setTimeout(() => {
    current.run({ requestId }, () =>
      say("warn", "waitUntil: the time is up; it is not waited for any more."),
    );
    over();
  }, limits.timeoutMs);
  pending += 1;
  if (pending === 1) tell({ k: "wait", n: 1 });
  Promise.resolve(work)
    .catch((error) => say("error", `waitUntil: ${described(error)}`))
    .finally(over);
}
