/** Terminals: a real shell on a real machine, and a real WebSocket client. */
import { once } from "node:events";
import { describe, expect, onTestFinished, test } from "vitest";
import { WebSocket } from "ws";
import { eventually, expectRefusal } from "./support/answers.ts";
import { createSandbox, output, server, sharedSandbox } from "./support/fixtures.ts";

interface Message {
  kind: string;
  id?: string;
  offset?: number;
  code?: number | string | null;
  signal?: string | null;
}

/** A client of a terminal, which collects its output. */
class Screen {
  text = "";
  bytes = 0;
  readonly messages: Message[] = [];
  closed: number | undefined;
  readonly socket: WebSocket;

  constructor(path: string, token: string | null = server.token) {
    this.socket = new WebSocket(`${server.baseUrl.replace("http", "ws")}/v1/sandboxes/${path}`, {
      headers: token === null ? {} : { authorization: `Bearer ${token}` },
    });
    const decoder = new TextDecoder();
    this.socket.on("message", (data: Buffer, isBinary) => {
      if (!isBinary) return void this.messages.push(JSON.parse(data.toString()) as Message);
      this.text += decoder.decode(data, { stream: true });
      this.bytes += data.length;
    });
    this.socket.on("error", () => {});
    this.socket.once("close", (code) => (this.closed = code));
    onTestFinished(() => this.socket.terminate());
  }

  static async open(path: string): Promise<Screen> {
    const screen = new Screen(path);
    await once(screen.socket, "open");
    await screen.hears("started");
    return screen;
  }

  type(text: string): void {
    this.socket.send(Buffer.from(text));
  }

  resize(cols: number, rows: number): void {
    this.socket.send(JSON.stringify({ kind: "resize", cols, rows }));
  }

  shows(text: string | RegExp): Promise<string> {
    const isThere = (all: string) => (typeof text === "string" ? all.includes(text) : text.test(all));
    return eventually(async () => this.text, isThere);
  }

  async hears(kind: string): Promise<Message> {
    const find = () => this.messages.find((message) => message.kind === kind);
    return (await eventually(
      async () => find(),
      (found) => found !== undefined,
    )) as Message;
  }

  get id(): string {
    return this.messages[0]?.id ?? "";
  }
}

async function refusal(path: string, token: string | null): Promise<string> {
  const { socket } = new Screen(path, token);
  const [, response] = await once(socket, "unexpected-response");
  const { code } = JSON.parse((await response.toArray()).join("")) as { code: string };
  return `${response.statusCode} ${code}`;
}

describe("a shell", () => {
  const sandbox = sharedSandbox();

  test("runs a login shell on a terminal of the requested size, and follows changes of the size", async () => {
    const screen = await Screen.open(`${sandbox.id}/pty?cols=101&rows=31`);
    screen.type("tty; stty size; shopt -q login_shell && echo is-a-login; tput cols; echo $TERM\n");
    await screen.shows(/\/dev\/pts\/\d+\r\n31 101\r\nis-a-login\r\n101\r\nxterm-256color\r\n/);
    screen.resize(77, 22);
    await eventually(
      () => server.api("GET", `/v1/sandboxes/${sandbox.id}/pty/${screen.id}`),
      ({ body }) => body.cols === 77,
    );
    screen.type("stty size; echo $COLUMNS; echo gr''üße 日本\n");
    await screen.shows("22 77\r\n77\r\ngrüße 日本\r\n");
    screen.type("exit 7\n");
    expect(await screen.hears("exited")).toMatchObject({ code: 7, signal: null });
    await eventually(
      async () => screen.closed,
      (code) => code === 1000,
    );
  });

  test("Ctrl-C ends the program in the foreground, Ctrl-Z stops it, Ctrl-D ends the shell", async () => {
    const screen = await Screen.open(`${sandbox.id}/pty`);
    screen.type("sh -c 'echo u''p; exec sleep 4242'\n");
    await screen.shows("up\r\n");
    screen.type("\x03");
    screen.type("echo co''de $?\n");
    await screen.shows("code 130\r\n");
    screen.type("sh -c 'echo ag''ain; exec sleep 4242'\n");
    await screen.shows("again\r\n");
    screen.type("\x1a");
    await screen.shows("Stopped");
    expect(await output(sandbox.id, "pgrep -c -f 'sleep 424[2]'")).toBe("1");
    screen.type("kill %1; wait\n\x04");
    await screen.hears("exited");
    expect(await output(sandbox.id, "pgrep -f 'sleep 424[2]' || echo none")).toBe("none");
  });

  test("passes raw keys to a program in raw mode", async () => {
    const screen = await Screen.open(`${sandbox.id}/pty`);
    screen.type("stty raw -echo; echo rea''dy; head -c 3 | od -An -c; stty sane\n");
    await screen.shows("ready\n");
    screen.type("\x03\x1a\x1c");
    await screen.shows("003 032 034");
  });

  test("the shell continues without a viewer, and sends the missed output to the next viewer", async () => {
    const first = await Screen.open(`${sandbox.id}/pty`);
    first.type("stty -echo; PS1=; echo star''ted\n");
    await first.shows("started\r\n");
    first.type("for i in 1 2 3 4 5; do sleep 0.1; echo tick $i; done; echo do''ne\n");
    await first.shows("tick 1\r\n");
    const seen = (first.messages[0]?.offset ?? 0) + first.bytes;
    first.socket.close();
    await eventually(
      async () => first.closed,
      (code) => code !== undefined,
    );
    const second = await Screen.open(`${sandbox.id}/pty/${first.id}?offset=${seen}`);
    await second.shows("done\r\n");
    expect(first.text + second.text).toContain("tick 1\r\ntick 2\r\ntick 3\r\ntick 4\r\ntick 5\r\ndone\r\n");
  });

  test("a viewer that does not read blocks the program, and the server's memory does not grow", async () => {
    const screen = await Screen.open(
      `${sandbox.id}/pty?command=${encodeURIComponent("base64 </dev/urandom")}`,
    );
    await screen.shows(/.{1000}/s);
    const before = server.residentBytes;
    screen.socket.pause();
    const path = `/v1/sandboxes/${sandbox.id}/pty/${screen.id}`;
    const outputBytes = async () => (await server.api("GET", path)).body.output_bytes as number;
    let last = -1;
    await eventually(
      async () => [last, (last = await outputBytes())],
      ([earlier, now]) => earlier === now,
    );
    const stopped = last;
    await new Promise((resolve) => setTimeout(resolve, 1000));
    expect(await outputBytes()).toBe(stopped);
    expect(server.residentBytes - before).toBeLessThan(64 * 1024 ** 2);
    screen.socket.resume();
    await eventually(outputBytes, (now) => now > stopped + 1024 ** 2);
    const killed = await server.api("DELETE", path);
    expect(killed.body).toMatchObject({ status: "killed", exit_code: 129 });
    expect(await screen.hears("exited")).toMatchObject({ signal: "SIGHUP" });
  });

  test("refuses a missing token, another owner's token, and an unknown terminal", async () => {
    const path = `${sandbox.id}/pty`;
    expect(await refusal(path, null)).toBe("401 unauthenticated");
    expect(await refusal(path, "svc_nobody")).toBe("401 unauthenticated");
    expect(await refusal("sbx_none/pty", server.token)).toBe("404 sandbox_not_found");
    expect(await refusal(`${path}/pty_none`, server.token)).toBe("404 pty_not_found");
    expect(await refusal(`${path}?cols=0`, server.token)).toBe("400 invalid_request");
    expectRefusal(await server.api("GET", `/v1/sandboxes/${path}/pty_none`), 404, "pty_not_found");
  });
});

test("isolates the terminals of two sandboxes from each other", async () => {
  const [one, other] = [await createSandbox(), await createSandbox()];
  const screen = await Screen.open(`${one.id}/pty`);
  expect((await server.api("GET", `/v1/sandboxes/${other.id}/pty`)).body).toEqual({ items: [] });
  expect(await refusal(`${other.id}/pty/${screen.id}`, server.token)).toBe("404 pty_not_found");
});

test("a terminal survives a pause and kill -9 of the server", async () => {
  const { id } = await createSandbox({ auto_resume: true, timeout_seconds: 1800 });
  const before = await Screen.open(`${id}/pty`);
  before.type("X=kept; echo be''fore\n");
  await before.shows("before\r\n");
  const paused = await server.api("POST", `/v1/sandboxes/${id}/pause`);
  expect(paused.status, JSON.stringify(paused.body)).toBe(200);
  expect(await before.hears("error")).toMatchObject({ code: "sandbox_paused" });
  await eventually(
    async () => before.closed,
    (code) => code === 4409,
  );

  const woken = await Screen.open(`${id}/pty/${before.id}`);
  await woken.shows("before\r\n");
  woken.type("echo $X and on\n");
  await woken.shows("kept and on\r\n");

  await server.kill9();
  await eventually(
    async () => woken.closed,
    (code) => code !== undefined,
  );
  await server.start();
  const after = await Screen.open(`${id}/pty/${before.id}`);
  await after.shows("kept and on\r\n");
  after.type("echo $X and st''ill on; exit 5\n");
  await after.shows("kept and still on\r\n");
  expect(await after.hears("exited")).toMatchObject({ code: 5 });
});
