/**
 * The egress of a restricted sandbox: its allowlist through the proxy, and attempts on every other path from inside. A
 * namespace of the test run simulates the internet. This namespace also owns private addresses and the metadata
 * address, and counts arriving packets.
 */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import { run } from "@kontor/runtime/exec.ts";
import {
  DNS_ADDRESS,
  METADATA_ADDRESS,
  UPLINK_ADDRESS,
  watchInternet,
  WEB_ADDRESS,
  WEB_ADDRESS_V6,
} from "@kontor/runtime/network/testing/internet.ts";
import { UndoStack } from "@kontor/runtime/undo.ts";
import { eventually } from "./support/answers.ts";
import {
  createSandbox,
  deleteSandbox,
  exec,
  getSandbox,
  output,
  server,
  sharedSandbox,
  writeFile,
} from "./support/fixtures.ts";

const PROXY = "http://10.0.0.1:3128";
const internet = watchInternet(inject("internet"));
const undo = new UndoStack();
let certificate = "";

/** Sandbox that may reach these names; some of the names resolve to forbidden addresses. */
const box = sharedSandbox({
  network: "restricted",
  allow_domains: ["web.test", "metadata.test", "private.test", "rebind.test", "host.test"],
});
const unlisted = sharedSandbox({ network: "restricted" });

beforeAll(async () => {
  const directory = mkdtempSync(join(tmpdir(), "kontor-egress-"));
  undo.add("directory", async () => rmSync(directory, { recursive: true }));
  const [key, cert] = [join(directory, "key.pem"), join(directory, "cert.pem")];
  const made =
    "openssl req -x509 -nodes -days 2 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -subj /CN=tests";
  const names = "subjectAltName=DNS:web.test,DNS:other.test";
  await run([...made.split(" "), "-addext", names, "-keyout", key, "-out", cert]);
  certificate = readFileSync(cert, "utf8");

  const script = join(import.meta.dirname, "support/egress-servers.ts");
  const argv = [`--net=/run/netns/${inject("internet")}`, process.execPath, script, key, cert];
  const child = spawn("nsenter", argv, { stdio: ["pipe", "pipe", "inherit"] });
  undo.add("server", async () => {
    const exited = once(child, "exit");
    child.kill("SIGKILL");
    await exited;
  });
  await once(child.stdout, "data");
  for (const { id } of [box, unlisted]) await trust(id);
});
afterAll(async () => {
  const [failure] = await undo.unwind();
  if (failure) throw failure.error;
});

async function trust(id: string): Promise<void> {
  expect((await writeFile(id, "/workspace/ca.pem", certificate)).status).toBeLessThan(300);
}

/** Runs curl with the environment of the sandbox. Returns the body, or `failed` and curl's message. */
async function curl(id: string, ...args: string[]): Promise<string> {
  const quoted = args.map((arg) => `'${arg}'`).join(" ");
  const ran = await exec(id, `curl -sS -m 10 --cacert /workspace/ca.pem ${quoted}`);
  return ran.exit_code === 0 ? ran.stdout : `failed ${ran.exit_code}: ${ran.stderr}`;
}

async function packetsTo(address: string): Promise<number> {
  const rows = (await internet.seen()).filter((row) => row.destination === address);
  return rows.reduce((sum, row) => sum + row.packets, 0);
}

/** Runs attempts that must fail, and checks that no packet arrives at any of these addresses. */
async function nothingArrives(addresses: readonly string[], tries: () => Promise<void>): Promise<void> {
  await internet.forget();
  await tries();
  for (const address of addresses) expect([address, await packetsTo(address)]).toEqual([address, 0]);
}

const PRIVATE = [METADATA_ADDRESS, "10.66.0.1"];

test("sets the proxy under every common variable name in a restricted sandbox's environment", async () => {
  const lines = (await output(box.id, "env | grep -i proxy | sort")).split("\n");
  expect(lines.toSorted()).toEqual(
    [
      `HTTPS_PROXY=${PROXY}`,
      `HTTP_PROXY=${PROXY}`,
      "NODE_USE_ENV_PROXY=1",
      "NO_PROXY=localhost,127.0.0.1",
      `http_proxy=${PROXY}`,
      `https_proxy=${PROXY}`,
      "no_proxy=localhost,127.0.0.1",
    ].toSorted(),
  );
  const own = await createSandbox({
    network: "restricted",
    env: { HTTPS_PROXY: "http://mine.test:1", NO_PROXY: "*" },
  });
  expect(await output(own.id, "echo $HTTPS_PROXY $NO_PROXY $HTTP_PROXY")).toBe(
    `http://mine.test:1 * ${PROXY}`,
  );
  const open = await createSandbox({ network: "open" });
  expect(await output(open.id, "env | grep -ic proxy || true")).toBe("0");
});

test("programs in a sandbox reach an allowed host by HTTPS and by HTTP without configuration", async () => {
  await internet.forget();
  expect(await curl(box.id, "https://web.test/")).toBe("over TLS to web.test\n");
  expect(await curl(box.id, "http://web.test/")).toBe("the internet of the tests\n");
  expect(await curl(box.id, "--proxytunnel", "http://web.test/")).toBe("the internet of the tests\n");
  expect(
    await output(box.id, "/usr/lib/apt/apt-helper -qq download-file http://web.test/x /tmp/x && cat /tmp/x"),
  ).toContain("the internet of the tests");
  const sources = (await internet.seen()).map(({ source }) => source);
  expect(new Set(sources)).toEqual(new Set([UPLINK_ADDRESS]));
});

test("refuses a host that is not on the allowlist, with the reason and the cure", async () => {
  await nothingArrives([WEB_ADDRESS, DNS_ADDRESS], async () => {
    expect(await curl(box.id, "http://other.test/")).toMatch(
      /other\.test is not on this machine's allowlist.*allow_domains/,
    );
    expect(await curl(box.id, "https://other.test/")).toMatch(/failed 56: .*403/);
    expect(await curl(box.id, "https://sub.web.test/")).toMatch(/failed 56: .*403/);
    expect(await curl(unlisted.id, "https://web.test/")).toMatch(/failed 56: .*403/);
  });
});

test("a sandbox's own allowlist replaces the installation's list, even if it is empty", async () => {
  const limits = await server.api("GET", "/v1/sandboxes/limits");
  expect(limits.body.default_egress_allowlist).not.toContain("auto");
  const none = await createSandbox({ network: "restricted", allow_domains: [] });
  await trust(none.id);
  expect(await curl(none.id, "https://web.test/")).toMatch(/failed 56: .*403/);
});

test.for([
  ["an address", `https://${WEB_ADDRESS}/`],
  ["an address by HTTP", `http://${WEB_ADDRESS}/`],
  ["an address as a number", "http://3325256705/"],
  ["an IPv6 address", `https://[${WEB_ADDRESS_V6}]/`],
  ["an IPv6 address by HTTP", `http://[${WEB_ADDRESS_V6}]/`],
  ["another port", "https://web.test:8443/"],
  ["another port by HTTP", "http://web.test:7/"],
  ["the mail port", "https://web.test:25/"],
  ["the metadata service by address", `http://${METADATA_ADDRESS}/`],
  ["the metadata service by name", "http://metadata.test/"],
  ["a private address by name", "https://private.test/"],
  ["the host by name", "https://host.test/"],
  ["the host by name, its API's port", "http://host.test:8080/"],
  ["the host's loopback", "http://127.0.0.1:8080/", "--noproxy", ""],
  ["the host's loopback by name", "http://localhost/", "--noproxy", ""],
  ["the proxy itself", "http://10.0.0.1:3128/"],
])("refuses to connect a restricted sandbox to %s: %s", async ([, ...args]) => {
  await nothingArrives([WEB_ADDRESS, ...PRIVATE], async () => {
    const answer = await curl(box.id, ...args, "-w", " [%{http_code} %{http_connect}]");
    expect(answer).toMatch(/\[403 000\]|response 403|\[000 403\]/);
  });
  expect(await internet.seenV6()).toBe(0);
});

test("a tunnel through the proxy reaches only the host for which it was opened", async () => {
  // curl sends CONNECT web.test, and inside it TLS for other.test, which the server would serve.
  const answer = await curl(box.id, "--connect-to", "other.test:443:web.test:443", "https://other.test/");
  expect(answer).toMatch(/failed 35: .*access denied/i);
  const plain = await curl(box.id, "--proxytunnel", "-H", "Host: other.test", "http://web.test/");
  expect(plain).toContain("other.test is not on this machine's allowlist");
});

test("a name that changes its address (DNS rebinding) never leads to a private address", async () => {
  await nothingArrives(PRIVATE, async () => {
    const answers = [];
    for (let n = 0; n < 6; n += 1) answers.push(await curl(box.id, "http://rebind.test/"));
    expect(answers).toContain("the internet of the tests\n");
    expect(
      answers.filter((answer) => answer.includes("resolves to an address that is not public")),
    ).not.toEqual([]);
  });
});

test("checks a redirect of an allowed host like any other request", async () => {
  await nothingArrives(PRIVATE, async () => {
    for (const to of [
      `http://${METADATA_ADDRESS}/`,
      "http://private.test/",
      "https://10.66.0.1/",
      "https://other.test/",
    ]) {
      const answer = await curl(box.id, "-L", `https://web.test/redirect?${encodeURIComponent(to)}`);
      expect([to, answer]).toEqual([to, expect.stringMatching(/Kontor egress proxy|response 403/)]);
    }
  });
  expect(
    await curl(box.id, "-L", `https://web.test/redirect?${encodeURIComponent("http://web.test/")}`),
  ).toContain("the internet of the tests");
});

test("DNS carries no data out: only allowed names resolve, and no query for another name leaves the host", async () => {
  expect(await output(box.id, "getent ahosts web.test | head -1 | cut -d' ' -f1")).toBe(WEB_ADDRESS);
  await nothingArrives([DNS_ADDRESS], async () => {
    for (const name of ["c2VjcmV0.tunnel.test", "c2VjcmV0.web.test", "other.test"]) {
      expect((await exec(box.id, `getent ahosts ${name}`)).exit_code).not.toBe(0);
    }
  });
  await nothingArrives([WEB_ADDRESS], async () => {
    expect(await curl(box.id, "--noproxy", "*", "http://web.test/")).toContain("failed 7");
  });
});

test("the egress proxy serves only restricted sandboxes", async () => {
  for (const network of ["open", "off"]) {
    const other = await createSandbox({ network });
    await trust(other.id);
    expect(await curl(other.id, "--proxy", PROXY, "http://web.test/")).toContain("failed 7");
  }
});

test("counts refusals of the proxy and its resolver in the sandbox's record", async () => {
  const counted = await createSandbox({ network: "restricted", allow_domains: ["web.test"] });
  await trust(counted.id);
  expect(await curl(counted.id, "https://web.test/")).toBe("over TLS to web.test\n");
  expect((await getSandbox(counted.id))["egress_denied"]).toBe(0);
  for (let n = 0; n < 3; n += 1) await curl(counted.id, "https://other.test/");
  await eventually(
    () => getSandbox(counted.id),
    (got) => got["egress_denied"] === 3,
  );
});

test("closes the outside connections of a sandbox when the sandbox ends", async () => {
  const gone = await server.api("POST", "/v1/sandboxes", {
    body: { template: "debian-12", network: "restricted", allow_domains: ["web.test"] },
  });
  await trust(gone.body.id);
  await exec(
    gone.body.id,
    "nohup curl -sN --cacert /workspace/ca.pem https://web.test/slow > /tmp/slow 2>&1 & ",
  );
  const open = async () => {
    const argv = [
      `--net=/run/netns/${inject("internet")}`,
      "ss",
      "-Htn",
      "state",
      "established",
      "sport",
      "=",
      ":443",
    ];
    return (await run(["nsenter", ...argv])).stdout.split("\n").filter(Boolean).length;
  };
  await eventually(
    () => exec(gone.body.id, "cat /tmp/slow"),
    ({ stdout }) => stdout.includes("over TLS"),
  );
  expect(await open()).toBe(1);
  await deleteSandbox(gone.body.id);
  await eventually(open, (count) => count === 0);
});

test("running sandboxes can use the egress proxy again after a restart of the server", async () => {
  await server.kill9();
  await server.start();
  expect(await curl(box.id, "https://web.test/")).toBe("over TLS to web.test\n");
  expect(await curl(box.id, "https://other.test/")).toMatch(/failed 56: .*403/);
});
