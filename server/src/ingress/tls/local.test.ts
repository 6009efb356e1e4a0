import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import tls from "node:tls";
import { callbackify } from "node:util";
import { afterEach, beforeEach, expect, onTestFinished, test } from "vitest";
import { caFile, LocalCertificates, type LocalNames } from "./local.ts";

const names: LocalNames = {
  domains: ["localhost", "example.test"],
  wildcards: ["*.sbx.localhost", "*.sbx.example.test"],
};
let directory: string;

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "kontor-ca-"));
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

async function serve(certificates: LocalCertificates): Promise<number> {
  const server = tls.createServer({
    ...(await certificates.defaultCertificate()),
    SNICallback: callbackify((name: string) => certificates.contextFor(name)),
  });
  server.on("tlsClientError", () => {});
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  onTestFinished(() => void server.close());
  return (server.address() as AddressInfo).port;
}

/** Returns the subject of the certificate that a client with this authority accepts, or its error. */
function greet(port: number, name: string, ca = readFileSync(caFile(directory), "utf8")): Promise<string> {
  return new Promise((resolve) => {
    const socket = tls.connect({ host: "127.0.0.1", port, servername: name, ca }, () => {
      resolve(socket.getPeerX509Certificate()?.subjectAltName ?? "");
      socket.destroy();
    });
    socket.on("error", (error: NodeJS.ErrnoException) => resolve(`${error.code} ${error.message}`));
  });
}

test("issues trusted certificates for every name of the installation, with one certificate for all previews", async () => {
  const port = await serve(await LocalCertificates.open(directory, names));
  expect(await greet(port, "3000-abc.sbx.localhost")).toBe("DNS:*.sbx.localhost");
  expect(await greet(port, "files-abc.sbx.localhost")).toBe("DNS:*.sbx.localhost");
  expect(await greet(port, "1-a.sbx.example.test")).toBe("DNS:*.sbx.example.test");
  expect(await greet(port, "example.test")).toBe("DNS:example.test");
  expect(await greet(port, "localhost")).toContain("DNS:localhost");
});

test("issues no certificate that would pass for a foreign name", async () => {
  const port = await serve(await LocalCertificates.open(directory, names));
  expect(await greet(port, "bank.test")).toContain("ERR_TLS_CERT_ALTNAME_INVALID");
  expect(await greet(port, "a.b.sbx.localhost")).toContain("ERR_TLS_CERT_ALTNAME_INVALID");
});

test("prevents a stolen key from certifying foreign names", async () => {
  // The requested name is foreign, and the authority's constraints exclude it.
  const port = await serve(await LocalCertificates.open(directory, { ...names, wildcards: ["*.bank.test"] }));
  expect(await greet(port, "www.bank.test")).toContain("permitted subtree violation");
  expect(statSync(join(directory, "ca.key")).mode & 0o777).toBe(0o600);
});

test("keeps the authority at a later start, and creates a new one for other names, a lost key or a partial write", async () => {
  await LocalCertificates.open(directory, names);
  const first = readFileSync(caFile(directory), "utf8");
  await LocalCertificates.open(directory, names);
  expect(readFileSync(caFile(directory), "utf8")).toBe(first);
  await LocalCertificates.open(directory, { ...names, domains: ["localhost", "other.test"] });
  const second = readFileSync(caFile(directory), "utf8");
  expect(second).not.toBe(first);
  // Simulates a crash between the two files.
  writeFileSync(caFile(directory), first);
  await LocalCertificates.open(directory, names);
  expect(readFileSync(caFile(directory), "utf8")).not.toBe(first);
});
