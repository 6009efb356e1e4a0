/** From a push to a page in a browser, and the next push while the page is open. */
import type { Page } from "playwright-core";
import { afterAll, beforeAll, expect, inject, onTestFinished, test } from "vitest";
import { openBrowser } from "./support/browser.ts";
import {
  deleteProject,
  dockerfile,
  waitForDeployment,
  makeProject,
  type Project,
  push,
} from "./support/projects.ts";
import { type Server, startServer } from "./support/server.ts";

let server: Server;

beforeAll(async () => {
  const env = { KONTOR_POOL_SIZE: "0", KONTOR_RATE_LIMITS: "off", KONTOR_UPLINK: inject("internet") };
  server = await startServer(env, ["node-22"]);
});
afterAll(() => server?.destroy());

/** Returns a page that polls its text every 50 ms, and counts the responses. */
const page = (text: string) => `
const body = \`<!doctype html><title>shop</title><h1></h1><script>
window.answers = 0; window.failures = [];
setInterval(() => fetch("/text").then(
  async (answer) => {
    if (!answer.ok) return failures.push(answer.status);
    answers += 1; document.querySelector("h1").textContent = await answer.text();
  },
  (error) => failures.push(String(error)),
), 50);
</script>\`;
require("node:http").createServer((request, response) => {
  if (request.url === "/text") return response.end(${JSON.stringify(text)});
  response.setHeader("content-type", "text/html");
  response.end(body);
}).listen(process.env.PORT);
process.on("SIGTERM", () => process.exit(0));`;

/** Code of a server with an echoing WebSocket, for texts of less than 126 bytes in one frame. */
const chat = `
const { createHash } = require("node:crypto");
const body = \`<!doctype html><title>chat</title><p></p><script>
window.closed = false;
window.socket = new WebSocket(location.origin.replace("http", "ws") + "/chat");
socket.onclose = () => (closed = true);
socket.onmessage = ({ data }) => (document.querySelector("p").textContent = data);
socket.onopen = () => socket.send("hello");
</script>\`;
const server = require("node:http").createServer((request, response) => {
  response.setHeader("content-type", "text/html");
  response.end(body);
});
server.on("upgrade", (request, socket) => {
  const accept = createHash("sha1").update(request.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest("base64");
  socket.write("HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Accept: " + accept + "\\r\\n\\r\\n");
  socket.on("data", (frame) => {
    const text = Buffer.from(frame.subarray(6), 0);
    for (let n = 0; n < text.length; n += 1) text[n] ^= frame[2 + (n % 4)];
    socket.write(Buffer.concat([Buffer.from([0x81, text.length]), text]));
  });
  socket.on("error", () => {});
});
server.listen(process.env.PORT);`;

async function deploy(project: Project, source: string): Promise<void> {
  await push(server, project, { Dockerfile: dockerfile(), "server.js": source });
  expect(await waitForDeployment(server, project)).toMatchObject({ status: "live", error: null });
}

async function project(): Promise<Project & { url: string }> {
  const made = await makeProject(server);
  onTestFinished(() => deleteProject(server, made));
  return made as Project & { url: string };
}

const waitForText = (at: Page, selector: string, text: string) =>
  at.locator(selector).getByText(text, { exact: true }).waitFor();

test(
  "a page shows the next push without a failed request, and another project's WebSocket stays open",
  { timeout: 300_000 },
  async () => {
    const [shop, other] = [await project(), await project()];
    const browser = await openBrowser(server);
    const first = await browser.newPage();
    await first.goto(shop.url);
    expect(await first.textContent("h1")).toBe("No deployment yet");
    await deploy(shop, page("one"));
    await first.goto(shop.url);
    await waitForText(first, "h1", "one");

    await deploy(other, chat);
    const second = await browser.newPage();
    await second.goto(other.url);
    await waitForText(second, "p", "hello");

    await deploy(shop, page("two"));
    await waitForText(first, "h1", "two");
    const seen = (await first.evaluate("({ answers, failures })")) as {
      answers: number;
      failures: unknown[];
    };
    expect(seen.failures).toEqual([]);
    expect(seen.answers).toBeGreaterThan(10);
    await second.evaluate('socket.send("still here")');
    await waitForText(second, "p", "still here");
    expect(await second.evaluate("closed")).toBe(false);
  },
);
