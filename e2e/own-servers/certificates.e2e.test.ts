/**
 * Certificates of a public authority, from a real ACME server: Pebble, with a resolver that resolves every name to this
 * host. No machine runs, because the targets of names are tested elsewhere.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import http from "node:http";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import tls from "node:tls";
import { LocalCertificates } from "../../server/src/ingress/tls/local.ts";
import { serveDns, type TestDns } from "../../server/src/platform/domains/testing/dns-server.ts";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { eventually } from "../support/answers.ts";
import { freePort } from "../../cli/src/serve/port.ts";
import { type Server, startServer } from "../support/server.ts";

const domain = "preview.test";
const directory = mkdtempSync(join(tmpdir(), "kontor-acme-"));
const programs: ChildProcess[] = [];
let server: Server;
/** DNS server for this server's queries about custom names; the authority has its own resolver. */
let names: TestDns;

function start(program: string, args: string[], env: Record<string, string> = {}): void {
  programs.push(spawn(program, args, { stdio: "ignore", env: { ...process.env, ...env } }));
}

beforeAll(async () => {
  const [acme, management, dns, challenges] = await Promise.all([
    freePort(),
    freePort(),
    freePort(),
    freePort(),
  ]);
  // The authority's own address needs a certificate that this server trusts.
  const own = await LocalCertificates.open(directory, { domains: ["localhost"], wildcards: [] });
  const { key, cert } = await own.defaultCertificate();
  names = await serveDns({});
  server = await startServer(
    {
      KONTOR_RUNTIME: "fake",
      KONTOR_ALLOW_FAKE_RUNTIME: "1",
      KONTOR_POOL_SIZE: "0",
      KONTOR_TLS_MODE: "acme",
      KONTOR_PREVIEW_DOMAIN: domain,
      KONTOR_APPS_DOMAIN: "apps.test",
      KONTOR_DNS_SERVERS: names.address,
      KONTOR_PUBLIC_URL: "https://kontor.test",
      KONTOR_ACME_EMAIL: "operator@kontor.test",
      KONTOR_ACME_DIRECTORY: `https://localhost:${acme}/dir`,
      NODE_EXTRA_CA_CERTS: join(directory, "ca.crt"),
    },
    [],
  );
  writeFileSync(join(directory, "acme.key"), key);
  writeFileSync(join(directory, "acme.crt"), cert);
  const settings = {
    listenAddress: `127.0.0.1:${acme}`,
    managementListenAddress: `127.0.0.1:${management}`,
    certificate: join(directory, "acme.crt"),
    privateKey: join(directory, "acme.key"),
    // Port at which the authority validates the control of a name.
    httpPort: server.description.port,
    tlsPort: server.description.port,
    ocspResponderURL: "",
    externalAccountBindingRequired: false,
  };
  writeFileSync(join(directory, "pebble.json"), JSON.stringify({ pebble: settings }));
  const resolver = ["-dns01", `127.0.0.1:${dns}`, "-defaultIPv4", "127.0.0.1", "-defaultIPv6", ""];
  const nothingElse = ["-http01", "", "-https01", "", "-tlsalpn01", ""];
  start("pebble-challtestsrv", [...resolver, ...nothingElse, "-management", `127.0.0.1:${challenges}`]);
  start("pebble", ["-config", join(directory, "pebble.json"), "-dnsserver", `127.0.0.1:${dns}`], {
    PEBBLE_VA_NOSLEEP: "1",
  });
  await eventually(
    () => isListening(acme),
    (is) => is,
  );
});
afterAll(async () => {
  await server?.destroy();
  await names?.close();
  for (const program of programs) {
    program.kill("SIGKILL");
    if (program.exitCode === null && program.signalCode === null) await once(program, "exit");
  }
  rmSync(directory, { recursive: true, force: true });
});

function isListening(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = net.connect(port, "127.0.0.1", () => resolve(true));
    socket.on("error", () => resolve(false)).on("connect", () => socket.destroy());
  });
}

async function previewName(): Promise<string> {
  const made = await server.api("POST", "/v1/sandboxes", { body: { template: "debian-12" } });
  expect(made.status, JSON.stringify(made.body)).toBe(201);
  onTestFinished(async () => {
    await server.api("DELETE", `/v1/sandboxes/${made.body.id}`);
  });
  const { body } = await server.api("GET", `/v1/sandboxes/${made.body.id}/host?port=3000`);
  return body.host as string;
}

/** Returns the names and the serial number of the certificate for a name. Null if the handshake fails. */
function shownFor(name: string): Promise<{ names: string; serial: string } | null> {
  return new Promise((resolve) => {
    const port = Number(server.description.env["KONTOR_TLS_PORT"]);
    const socket = tls.connect(
      { host: "127.0.0.1", port, servername: name, rejectUnauthorized: false },
      () => {
        const { subjectaltname = "", serialNumber: serial } = socket.getPeerCertificate();
        resolve({ names: subjectaltname, serial });
        socket.destroy();
      },
    );
    socket.on("error", () => resolve(null));
  });
}

/** Returns the complete response to a request by TLS. */
function headOf(name: string): Promise<string> {
  const port = Number(server.description.env["KONTOR_TLS_PORT"]);
  return new Promise((resolve) => {
    const socket = tls.connect({ host: "127.0.0.1", port, servername: name, rejectUnauthorized: false }, () =>
      socket.write(`GET / HTTP/1.1\r\nHost: ${name}\r\nConnection: close\r\n\r\n`),
    );
    let got = "";
    socket.on("data", (piece: Buffer) => (got += piece.toString()));
    socket.on("close", () => resolve(got));
  });
}

function plainly(host: string, path: string): Promise<http.IncomingMessage> {
  return new Promise((resolve, reject) => {
    http
      .get(
        { host: "127.0.0.1", port: server.description.port, path, headers: { host }, agent: false },
        resolve,
      )
      .on("error", reject);
  });
}

test("a host name with a target gets a certificate at its first visit, and keeps it after a restart", async () => {
  const name = await previewName();
  const first = await eventually(
    () => shownFor(name),
    (shown) => shown !== null,
  );
  expect(first?.names).toBe(`DNS:${name}`);
  const kept = join(server.dataDir, "certificates");
  expect(readdirSync(kept)).toContain(`${name}.pem`);
  expect(statSync(join(kept, `${name}.pem`)).mode & 0o777).toBe(0o600);
  await server.stop();
  await server.start();
  expect(await shownFor(name)).toEqual(first);
  expect((await shownFor("kontor.test"))?.names).toBe("DNS:kontor.test");
});

test("requests no certificate for foreign host names, or for own host names without a target", async () => {
  for (const name of ["bank.test", `3000-${"a".repeat(20)}.sbx.${domain}`, `x.sbx.${domain}`, "apps.test"]) {
    expect(await shownFor(name)).toBeNull();
    expect(readdirSync(join(server.dataDir, "certificates"))).not.toContain(`${name}.pem`);
  }
});

test("redirects plain HTTP to HTTPS for every own host name, except on loopback", async () => {
  const name = await previewName();
  for (const host of [name, "kontor.test"]) {
    const { statusCode, headers } = await plainly(host, "/a?b=c");
    expect([statusCode, headers.location]).toEqual([308, `https://${host}/a?b=c`]);
  }
  expect((await plainly("127.0.0.1", "/healthz")).statusCode).toBe(200);
  expect((await plainly(name, "/.well-known/acme-challenge/unknown")).statusCode).toBe(308);
});

test("a custom domain gets a certificate once DNS proves its owner, redirects to HTTPS, and stays with its project", async () => {
  const name = "www.customer.test";
  const made = await server.api("POST", "/api/v1/projects", { body: { name: "shop", custom_domain: name } });
  expect(made.status, JSON.stringify(made.body)).toBe(201);
  const verify = async () => (await server.api("POST", `/api/v1/domains/${made.body.id}/verify`)).body.status;
  expect(await verify()).toBe("failed");
  expect(await shownFor(name)).toBeNull();
  names.zone[name] = { CNAME: "shop.apps.test" };
  expect(await verify()).toBe("verified");
  // The server reads the list of environments at its start.
  await server.stop();
  await server.start();
  const shown = await eventually(
    () => shownFor(name),
    (one) => one !== null,
  );
  expect(shown?.names).toBe(`DNS:${name}`);
  const { statusCode, headers } = await plainly(name, "/a?b=c");
  expect([statusCode, headers.location]).toEqual([308, `https://${name}/a?b=c`]);
  const answer = await headOf(name);
  expect(answer).toMatch(/^HTTP\/1.1 404 /);
  expect(answer).toContain("X-Kontor-Error: not_deployed\r\n");
  expect(answer).toContain("Strict-Transport-Security: max-age=31536000\r\n");
});

test("sends the HSTS header with responses by HTTPS", async () => {
  const name = await previewName();
  await eventually(
    () => shownFor(name),
    (shown) => shown !== null,
  );
  expect(await headOf(name)).toContain("Strict-Transport-Security: max-age=31536000\r\n");
});
