/** Registries that attack the client: its credential, its parser, its deadlines and the server's machine. */
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { parseOpenedHosts } from "#lib/network/addresses.ts";
import type { RegistryCredential } from "./client.ts";
import { ownArchitecture } from "./manifest.ts";
import { downloadImage, resolveImage } from "./pull.ts";
import { parseReference } from "./reference.ts";
import { RegistryError } from "./registry-error.ts";
import { digestOf, makeImage, makeIndex, type TestImage } from "./testing/image.ts";
import { type RegistryOptions, TestRegistry } from "./testing/registry.ts";

const image = makeImage([[{ path: "a", bytes: "a" }]]);
const account = { username: "ci", password: "canary-password" };
const basic = Buffer.from(`${account.username}:${account.password}`).toString("base64");

async function openRegistry(options: RegistryOptions = {}): Promise<TestRegistry> {
  const registry = await TestRegistry.open(options);
  onTestFinished(() => registry[Symbol.asyncDispose]());
  return registry;
}

interface PullOptions {
  credential?: RegistryCredential;
  quietMs?: number;
  opened?: readonly string[];
}

async function pull(
  text: string,
  { credential, quietMs = 5000, opened = ["127.0.0.0/8"] }: PullOptions = {},
) {
  const into = await mkdtemp(join(tmpdir(), "kontor-attack-"));
  onTestFinished(() => rm(into, { recursive: true, force: true }));
  const { signal } = new AbortController();
  const client = {
    opened: parseOpenedHosts(opened),
    owner: "one",
    credential: credential ?? null,
    signal,
  };
  const limits = { maxBytes: 10 * 1024 ** 2, wholeMs: 60_000, quietMs };
  const found = await resolveImage(parseReference(text)!, client, limits);
  await downloadImage(found, into, client, limits);
  return readdir(into);
}

const failure = (work: Promise<unknown>) =>
  work.then(
    () => undefined,
    (error: unknown) => error,
  );

function withManifest(from: TestImage, change: (manifest: Record<string, unknown>) => void): TestImage {
  const manifest = JSON.parse(from.manifest.bytes.toString()) as Record<string, unknown>;
  change(manifest);
  return { ...from, manifest: { ...from.manifest, bytes: Buffer.from(JSON.stringify(manifest)) } };
}

test.each(["Bearer", "Basic"])(
  "sends the credential to no token service that a redirect's target names in a %s challenge",
  async (scheme) => {
    const thief = await openRegistry();
    const registry = await openRegistry({ auth: { kind: "basic", ...account }, hasStorage: true });
    registry.push("team/app:1", image);
    registry.onBlob = (digest, response) => {
      // The client requests the configuration first, and is authenticated after that.
      if (digest === digestOf(image.blobs[0]!)) return false;
      const challenge = `${scheme} realm="http://${thief.host}/token",service="x"`;
      response.writeHead(401, { "www-authenticate": challenge }).end();
      return true;
    };
    const credential = { registry: registry.host, ...account };
    const error = await failure(pull(`${registry.host}/team/app:1`, { credential }));
    expect((error as Error).message).toContain("refuses the download");
    expect(JSON.stringify(thief.seen)).not.toContain(basic);
    expect(thief.seen).toEqual([]);
  },
);

test("sends neither credential nor token to the target of a redirect, from a manifest or the token service", async () => {
  const thief = await openRegistry();
  const registry = await openRegistry({ auth: { kind: "bearer", ...account } });
  registry.push("team/app:1", image);
  const credential = { registry: registry.host, ...account };
  for (const moved of [/^\/token/, /manifests/]) {
    registry.onRequest = ({ url = "", headers }, response) => {
      if (!moved.test(url) || headers.authorization === undefined) return false;
      response.writeHead(302, { location: `http://${thief.host}${url}` }).end();
      return true;
    };
    expect(await failure(pull(`${registry.host}/team/app:1`, { credential }))).toBeInstanceOf(RegistryError);
  }
  expect(thief.seen.length).toBeGreaterThan(0);
  expect(thief.seen.every(({ authorization }) => authorization === undefined)).toBe(true);
});

test.each([
  "http://[::1]/",
  "https://[::ffff:127.0.0.1]/",
  "https://[::ffff:a9fe:a9fe]/latest",
  "https://[64:ff9b::a9fe:a9fe]/",
  "https://[fe80::1]/",
  "https://0x7f.1/",
  "https://2130706433/",
  "https://017700000001/",
  "https://127.0.0.1.:1/",
  "https://localhost./",
  "https://[fe80::1%25eth0]/",
  "https://１２７.0.0.1/",
])("refuses a redirect to %s", async (location) => {
  const registry = await openRegistry();
  registry.push("team/app:1", image);
  registry.onBlob = (_, response) => {
    response.writeHead(307, { location: Buffer.from(location).toString("latin1") }).end();
    return true;
  };
  // The operator allowed the registry's address in its usual form, and no other address.
  const opened = ["127.0.0.1"];
  const error = await failure(pull(`${registry.host}/team/app:1`, { opened }));
  expect(error).toBeInstanceOf(RegistryError);
});

test.each(["256.1.1.1/team/app", "1.2.3.4.5/team/app", "0xzz.1/team/app", "registry.1/team/app"])(
  "refuses %s, whose registry cannot be the host of a URL",
  (text) => {
    expect(parseReference(text)).toBe(undefined);
  },
);

test.each(["0x7f.1/app", "127.1/app", "2130706433:5000/app", "017700000001:5000/app", "localhost:1/app"])(
  "refuses loopback written as %s",
  async (text) => {
    expect(parseReference(text)).toBeDefined();
    await expect(pull(text, { opened: [] })).rejects.toThrow("private or internal address");
  },
);

test("refuses a layer that is the configuration as well, and gives the owner the reason", async () => {
  const registry = await openRegistry();
  const hostile = withManifest(image, (of) => {
    const { digest, size } = of["config"] as { digest: string; size: number };
    Object.assign((of["layers"] as object[])[0]!, { digest, size });
  });
  registry.push("team/app:1", hostile);
  expect(await failure(pull(`${registry.host}/team/app:1`))).toBeInstanceOf(RegistryError);
});

// Go's parser ignores the case of field names, and uses the last of two equal names; JavaScript does neither.
test.each<[string, (manifest: Record<string, unknown>) => void]>([
  ["Layers", (of) => (of["Layers"] = Array.from({ length: 1000 }, () => (of["layers"] as unknown[])[0]))],
  ["CONFIG", (of) => (of["CONFIG"] = { ...(of["config"] as object), digest: `sha256:${"c".repeat(64)}` })],
  ["MediaType", (of) => (of["MediaType"] = "application/vnd.oci.image.index.v1+json")],
  ["manifests", (of) => (of["manifests"] = [of["config"]])],
  ["fsLayers", (of) => (of["fsLayers"] = [])],
  ["layerſ", (of) => (of["layerſ"] = [])],
  ["Digest in a layer", (of) => Object.assign((of["layers"] as object[])[0]!, { Digest: "sha256:0" })],
  ["URLs in the configuration", (of) => Object.assign(of["config"] as object, { Size: 1 })],
])("refuses a manifest that the builder could parse differently: %s", async (_, change) => {
  const registry = await openRegistry();
  registry.push("team/app:1", withManifest(image, change));
  await expect(pull(`${registry.host}/team/app:1`)).rejects.toThrow("manifest is malformed");
  expect(registry.downloads).toEqual([]);
});

test("removes control characters from the platforms of an index in the error", async () => {
  const registry = await openRegistry();
  registry.pushManifest("team/app:1", makeIndex({ "\u001b[31m\nfake line\u202e": image }));
  registry.push("team/app:2", makeImage([[]], { architecture: "\u001b]0;x\u0007\nfake" }));
  for (const tag of ["1", "2"]) {
    const error = await failure(pull(`${registry.host}/team/app:${tag}`));
    expect(error).toBeInstanceOf(RegistryError);
    expect((error as Error).message).toContain(ownArchitecture);
    expect((error as Error).message).not.toMatch(/\p{C}/u);
  }
});

test("explains a connection that breaks during a manifest, a token and a blob", async () => {
  const registry = await openRegistry({ auth: { kind: "bearer", ...account } });
  registry.push("team/app:1", image);
  const credential = { registry: registry.host, ...account };
  for (const broken of [/^\/token/, /manifests/, /blobs/]) {
    registry.onRequest = ({ url = "", headers }, response) => {
      if (!broken.test(url) || headers.authorization === undefined) return false;
      response.writeHead(200, { "content-length": "1000" });
      response.write("{", () => response.destroy());
      return true;
    };
    const error = await failure(pull(`${registry.host}/team/app:1`, { credential }));
    expect(error).toBeInstanceOf(RegistryError);
  }
});

test.each(["drip", "headers", "switch", "early"] as const)(
  "aborts a response that never ends: %s",
  async (answer) => {
    const registry = await openRegistry();
    registry.push("team/app:1", image);
    registry.onRequest = ({ url = "", socket }, response) => {
      if (!/manifests/.test(url)) return false;
      const every = (send: () => void) => {
        const timer = setInterval(send, 20);
        socket.on("close", () => clearInterval(timer));
        socket.on("error", () => {});
      };
      if (answer === "drip") {
        response.writeHead(200);
        every(() => response.write(" "));
      }
      if (answer === "headers") {
        socket.write("HTTP/1.1 200 OK\r\n");
        every(() => socket.write(`x-${"h".repeat(200)}: 1\r\n`));
      }
      if (answer === "switch")
        socket.write("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n");
      if (answer === "early") every(() => socket.write("HTTP/1.1 103 Early Hints\r\n\r\n"));
      return true;
    };
    const error = await failure(pull(`${registry.host}/team/app:1`, { quietMs: 700 }));
    expect(error).toBeInstanceOf(RegistryError);
  },
);

test("refuses an index that names an index, or names itself", async () => {
  const registry = await openRegistry();
  registry.push("team/app:own", image);
  const inner = makeIndex({ [ownArchitecture]: image });
  registry.pushManifest("team/app:inner", inner);
  const lying = { ...image, manifest: { ...image.manifest, bytes: inner.bytes } };
  registry.pushManifest("team/app:1", makeIndex({ [ownArchitecture]: lying }));
  const error = await failure(pull(`${registry.host}/team/app:1`));
  expect(error).toBeInstanceOf(RegistryError);
  expect(registry.downloads).toEqual([]);
});

test("refuses a layer listed with two sizes, and one with more bytes than its size", async () => {
  const registry = await openRegistry();
  const hostile = withManifest(image, (of) => {
    const [layer] = of["layers"] as { size: number }[];
    of["layers"] = [layer, { ...layer, size: 1 }];
  });
  registry.push("team/app:1", hostile);
  expect(await failure(pull(`${registry.host}/team/app:1`))).toBeInstanceOf(RegistryError);
  registry.push("team/app:2", image);
  registry.onBlob = (digest, response) => {
    if (digest !== digestOf(image.blobs[1]!)) return false;
    const timer = setInterval(() => response.write(Buffer.alloc(65_536)), 5);
    response.on("close", () => clearInterval(timer));
    return true;
  };
  expect(await failure(pull(`${registry.host}/team/app:2`))).toBeInstanceOf(RegistryError);
});
