/** Pulls over the real protocol from registries on loopback: honest, private and hostile ones. */
import { mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { parseOpenedHosts } from "#lib/network/addresses.ts";
import type { RegistryCredential } from "./client.ts";
import { ownArchitecture } from "./manifest.ts";
import { downloadImage, resolveImage } from "./pull.ts";
import { parseReference } from "./reference.ts";
import { digestOf, makeImage, makeIndex, type TestImage } from "./testing/image.ts";
import { type RegistryOptions, TestRegistry } from "./testing/registry.ts";

const loopback = ["127.0.0.0/8"];
const limits = { maxBytes: 10 * 1024 ** 2, wholeMs: 60_000 };
const image = makeImage([[{ path: "hello.txt", bytes: "hello" }], [{ path: "bye.txt", bytes: "bye" }]], {
  config: { Cmd: ["/hello"] },
});
const account = { username: "ci", password: "canary-password" };

async function openRegistry(options: RegistryOptions = {}): Promise<TestRegistry> {
  const registry = await TestRegistry.open(options);
  onTestFinished(() => registry[Symbol.asyncDispose]());
  return registry;
}

interface PullOptions {
  credential?: RegistryCredential;
  opened?: readonly string[];
  limits?: Partial<typeof limits> & { quietMs?: number };
  signal?: AbortSignal;
}

/** Resolves the reference, downloads the image into a new directory, and returns the files. */
async function pull(text: string, options: PullOptions = {}) {
  const into = await mkdtemp(join(tmpdir(), "kontor-pull-"));
  onTestFinished(() => rm(into, { recursive: true, force: true }));
  const client = {
    opened: parseOpenedHosts(options.opened ?? loopback),
    owner: "one",
    credential: options.credential ?? null,
    signal: options.signal ?? new AbortController().signal,
  };
  const bounds = { ...limits, ...options.limits };
  const found = await resolveImage(parseReference(text)!, client, bounds);
  await downloadImage(found, into, client, bounds);
  return { found, into, files: (await readdir(into)).toSorted() };
}

const filesOf = ({ blobs }: TestImage) =>
  [...blobs.map((blob) => digestOf(blob).slice(7)), "manifest.json", "version"].toSorted();

test.each([false, true])(
  "downloads an image into the layout of a directory (with Docker's media types: %s)",
  async (isDocker) => {
    const registry = await openRegistry();
    const typed = makeImage([[{ path: "a", bytes: "a" }]], { isDocker });
    const digest = registry.push("team/app:1", typed);
    const { found, into, files } = await pull(`${registry.host}/team/app:1`);
    expect(found).toMatchObject({ digest, manifestDigest: digest });
    expect(files).toEqual(filesOf(typed));
    expect(await readFile(join(into, "manifest.json"))).toEqual(typed.manifest.bytes);
  },
);

test("selects the image for this host's architecture from an index, and keeps the index's digest", async () => {
  const registry = await openRegistry();
  const other = makeImage([[{ path: "other", bytes: "x" }]], { architecture: "riscv64" });
  registry.push("team/app:other", other);
  const digest = registry.push("team/app:own", image);
  const index = registry.pushManifest("team/app:1", makeIndex({ riscv64: other, [ownArchitecture]: image }));
  const { found, files } = await pull(`${registry.host}/team/app:1`);
  expect(found).toMatchObject({ digest: index, manifestDigest: digest });
  expect(files).toEqual(filesOf(image));
  await expect(pull(`${registry.host}/team/app@${index}`)).resolves.toMatchObject({ files });

  registry.pushManifest("team/app:2", makeIndex({ riscv64: other }));
  await expect(pull(`${registry.host}/team/app:2`)).rejects.toThrow(/no image for linux\/.*linux\/riscv64/);
  await expect(pull(`${registry.host}/team/app:other`)).rejects.toThrow("is an image for linux/riscv64");
});

test.each(["basic", "bearer"] as const)("authenticates by %s at the image's registry only", async (kind) => {
  const registry = await openRegistry({ auth: { kind, ...account } });
  registry.push("team/app:1", image);
  const credential = { registry: registry.host, ...account };
  expect((await pull(`${registry.host}/team/app:1`, { credential })).files).toEqual(filesOf(image));

  const name = `${registry.host}/team/app:1`;
  await expect(pull(name)).rejects.toThrow("requires a login");
  const wrong = { ...credential, password: "another" };
  const refused = await pull(name, { credential: wrong }).catch((error: Error) => error.message);
  expect(refused).toContain("refuses the project's registry_credential");
  expect(refused).not.toContain("another");

  const elsewhere = await openRegistry({ auth: { kind, ...account } });
  elsewhere.push("team/app:1", image);
  await expect(pull(`${elsewhere.host}/team/app:1`, { credential })).rejects.toThrow("requires a login");
  const encoded = Buffer.from(`${account.username}:${account.password}`).toString("base64");
  expect(JSON.stringify(elsewhere.seen)).not.toContain(encoded);
});

test("requests a new token when the first one expires during a pull", async () => {
  const registry = await openRegistry({ auth: { kind: "bearer", ...account } });
  registry.push("team/app:1", image);
  let blobs = 0;
  registry.onBlob = () => {
    if ((blobs += 1) === 1) registry.rotate();
    return false;
  };
  const credential = { registry: registry.host, ...account };
  expect((await pull(`${registry.host}/team/app:1`, { credential })).files).toEqual(filesOf(image));
  expect(registry.seen.filter(({ server }) => server === "tokens").length).toBeGreaterThan(1);
});

test("follows a redirect to the registry's storage, without the credential", async () => {
  const registry = await openRegistry({ auth: { kind: "basic", ...account }, hasStorage: true });
  registry.push("team/app:1", image);
  const credential = { registry: registry.host, ...account };
  expect((await pull(`${registry.host}/team/app:1`, { credential })).files).toEqual(filesOf(image));
  const stored = registry.seen.filter(({ server }) => server === "storage");
  expect(stored.length).toBeGreaterThan(0);
  expect(stored.every(({ authorization }) => authorization === undefined)).toBe(true);
});

test("refuses registries at loopback, private and metadata addresses unless the operator allowed them", async () => {
  const registry = await openRegistry();
  registry.push("team/app:1", image);
  const closed = { opened: [] };
  await expect(pull(`${registry.host}/team/app:1`, closed)).rejects.toThrow("a private or internal address");
  const port = registry.host.split(":")[1];
  await expect(pull(`localhost:${port}/team/app:1`, closed)).rejects.toThrow("a private or internal address");
  expect(registry.seen).toEqual([]);
  for (const host of ["169.254.169.254", "10.0.0.1", "192.168.1.1:5000", "100.64.0.1", "0.0.0.0"])
    await expect(pull(`${host}/team/app:1`)).rejects.toThrow("a private or internal address");
});

test("refuses redirects and token services at addresses that are not allowed", async () => {
  const registry = await openRegistry({ host: "127.0.0.1" });
  registry.push("team/app:1", image);
  for (const location of ["http://169.254.169.254/latest", "https://10.0.0.1/blob", "file:///etc/passwd"]) {
    registry.onBlob = (_, response) => {
      response.writeHead(307, { location }).end();
      return true;
    };
    await expect(pull(`${registry.host}/team/app:1`)).rejects.toThrow(
      /private or internal address|without https|redirects to an invalid address/,
    );
  }
  registry.onBlob = (_, response) => {
    const challenge = 'Bearer realm="http://169.254.169.254/token",service="x"';
    response.writeHead(401, { "www-authenticate": challenge }).end();
    return true;
  };
  await expect(pull(`${registry.host}/team/app:1`)).rejects.toThrow("has a token service without https");
});

test("aborts a redirect loop", async () => {
  const registry = await openRegistry();
  registry.push("team/app:1", image);
  registry.onBlob = (digest, response) => {
    response.writeHead(307, { location: `/v2/team/app/blobs/${digest}` }).end();
    return true;
  };
  await expect(pull(`${registry.host}/team/app:1`)).rejects.toThrow("redirects more than 5 times");
});

test("refuses a blob with more, fewer or other bytes than its manifest names", async () => {
  const registry = await openRegistry();
  registry.push("team/app:1", image);
  const layer = image.blobs[1]!;
  const changed = Buffer.from(layer);
  changed[changed.length - 1]! ^= 1;
  for (const bytes of [Buffer.concat([layer, Buffer.alloc(4096)]), layer.subarray(1), changed]) {
    registry.onBlob = (digest, response) => {
      if (digest !== digestOf(layer)) return false;
      response.end(bytes);
      return true;
    };
    await expect(pull(`${registry.host}/team/app:1`)).rejects.toThrow("other bytes than its manifest names");
  }
});

test("refuses a manifest whose digest differs from the requested one", async () => {
  const registry = await openRegistry();
  registry.push("team/app:1", image);
  const wanted = `sha256:${"b".repeat(64)}`;
  registry.pushManifest(`team/app:${wanted.replace(":", "-")}`, image.manifest);
  await expect(pull(`${registry.host}/team/app@${wanted}`)).rejects.toThrow("no such image or tag");
  const index = makeIndex({ [ownArchitecture]: image });
  const lying = Buffer.from(index.bytes.toString().replace(/sha256:\w{64}/, wanted));
  registry.pushManifest("team/app:2", { ...index, bytes: lying });
  await expect(pull(`${registry.host}/team/app:2`)).rejects.toThrow("no such image or tag");
});

function withManifest(change: (manifest: Record<string, unknown>) => void): TestImage {
  const manifest = JSON.parse(image.manifest.bytes.toString()) as Record<string, unknown>;
  change(manifest);
  return { ...image, manifest: { ...image.manifest, bytes: Buffer.from(JSON.stringify(manifest)) } };
}

test.each<[string, RegExp, TestImage]>([
  [
    "128 layers",
    /128 layers; at most 127/,
    withManifest((of) => {
      of["layers"] = Array.from({ length: 128 }, () => (of["layers"] as unknown[])[0]);
    }),
  ],
  [
    "layers beyond the limit",
    /layers have 20.0 MiB; an image may have 10.0 MiB/,
    withManifest((of) => Object.assign((of["layers"] as object[])[0]!, { size: 20 * 1024 ** 2 })),
  ],
  [
    "a large configuration",
    /configuration is too large/,
    withManifest((of) => Object.assign(of["config"] as object, { size: 5 * 1024 ** 2 })),
  ],
  [
    "a foreign layer",
    /a layer has the type/,
    withManifest((of) =>
      Object.assign((of["layers"] as object[])[0]!, {
        mediaType: "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
        urls: ["http://169.254.169.254/"],
      }),
    ),
  ],
  [
    "an artifact",
    /an artifact of another kind/,
    withManifest((of) =>
      Object.assign(of["config"] as object, { mediaType: "application/vnd.cncf.helm.config.v1+json" }),
    ),
  ],
  [
    "a digest that is a path",
    /manifest is malformed/,
    withManifest((of) =>
      Object.assign((of["layers"] as object[])[0]!, { digest: "sha256:../../etc/passwd" }),
    ),
  ],
  [
    "schema 1",
    /is not an image/,
    withManifest((of) => (of["mediaType"] = "application/vnd.docker.distribution.manifest.v1+json")),
  ],
  [
    "no JSON",
    /manifest is malformed/,
    { ...image, manifest: { ...image.manifest, bytes: Buffer.from("[".repeat(100_000)) } },
  ],
  [
    "a large manifest",
    /manifest is larger than/,
    withManifest((of) => (of["filler"] = "x".repeat(5 * 1024 ** 2))),
  ],
])("refuses an image with %s before it downloads a layer", async (_, reason, hostile) => {
  const registry = await openRegistry();
  registry.push("team/app:1", hostile);
  await expect(pull(`${registry.host}/team/app:1`)).rejects.toThrow(reason);
  expect(registry.downloads).toEqual([]);
});

test("aborts a stalled download, and a download when its caller aborts", async () => {
  const registry = await openRegistry();
  registry.push("team/app:1", image);
  registry.onBlob = (digest, response) => {
    if (digest !== digestOf(image.blobs[1]!)) return false;
    response.write(image.blobs[1]!.subarray(0, 10));
    return true;
  };
  await expect(pull(`${registry.host}/team/app:1`, { limits: { quietMs: 300 } })).rejects.toThrow(
    "was too slow",
  );

  const caller = new AbortController();
  registry.onBlob = () => {
    caller.abort(new Error("cancelled"));
    return true;
  };
  await expect(pull(`${registry.host}/team/app:1`, { signal: caller.signal })).rejects.toThrow("cancelled");
});

test("names the cause of a failed pull: a missing tag, a pull limit, or a server error", async () => {
  const registry = await openRegistry();
  registry.push("team/app:1", image);
  await expect(pull(`${registry.host}/team/app:2`)).rejects.toThrow("has no such image or tag");
  for (const [status, reason] of [
    [429, "limits the number of pulls"],
    [500, "responds with status 500: out of  [31morder"],
  ] as const) {
    registry.onBlob = (_, response) => {
      response.writeHead(status).end(JSON.stringify({ errors: [{ message: "out of \u001b[31morder" }] }));
      return true;
    };
    await expect(pull(`${registry.host}/team/app:1`)).rejects.toThrow(reason);
  }
});
