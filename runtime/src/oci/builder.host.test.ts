/**
 * Tests of real builds: buildah, runc, and a network that plays the internet. The Dockerfiles are hostile.
 */
import { createHash } from "node:crypto";
import { mkdir, readFile, symlink, writeFile } from "node:fs/promises";
import net from "node:net";
import { once } from "node:events";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { run } from "../exec.ts";
import { HostNetwork } from "../network/network.ts";
import {
  DNS_ADDRESS,
  METADATA_ADDRESS,
  startInternet,
  UPLINK_ADDRESS,
  WEB_ADDRESS,
  type Internet,
} from "../network/testing/internet.ts";
import { authoritiesPath } from "./bases/registries.ts";
import { makeTestBuilds, TEST_INSTANCE } from "./testing/builds.ts";

const HOST_PORT = 17_011;

let internet: Internet;
let network: HostNetwork;
let hostService: net.Server;
let slots = 0;

const builds = makeTestBuilds(async () => {
  const slot = (slots += 1);
  const { netnsPath } = await network.attach(slot, "open");
  return { netnsPath, resolver: "10.0.0.1", release: () => network.detach(slot) };
});
const { oci, checkout, build, built, storeOf, expectNothingLeft } = builds;

beforeAll(async () => {
  internet = await startInternet();
  network = new HostNetwork({
    instance: TEST_INSTANCE,
    uplink: internet.uplink,
    dnsServers: [DNS_ADDRESS],
    proxyPort: 3128,
  });
  await network.open();
  hostService = net.createServer((socket) => socket.end("a service of the host"));
  hostService.listen(HOST_PORT, "0.0.0.0");
  await once(hostService, "listening");
  await builds.open();
});

afterAll(async () => {
  await builds.close();
  hostService?.close();
  await network?.close({ removeAll: true });
  await internet?.close();
});

beforeEach(builds.clearCheckout);

describe("a build", () => {
  test("makes layers with the content of the Dockerfile, and uses the cache the second time", async () => {
    const dockerfile = `# a comment
FROM debian:12-slim
WORKDIR /srv/app
COPY hello.txt ./
RUN cat hello.txt && \\
    id > made.txt
USER 1000:1000
EXPOSE 8080/tcp
LABEL kontor.health-check-path="/healthz"
CMD ["cat", "hello.txt"]
`;
    const first = await built(dockerfile);
    expect(first.log).toContain("debian:12-slim is made on this host");
    expect(first.log).toContain("hello\n");
    expect(first.image.config).toMatchObject({
      Cmd: ["cat", "hello.txt"],
      User: "1000:1000",
      WorkingDir: "/srv/app",
      ExposedPorts: { "8080/tcp": {} },
      Labels: { "kontor.health-check-path": "/healthz" },
    });
    const top = await Promise.all(
      first.image.layers.map((layer) =>
        readFile(join(layer, "srv/app/made.txt"), "utf8").catch(() => undefined),
      ),
    );
    expect(top.filter(Boolean)).toEqual(["uid=0(root) gid=0(root) groups=0(root)\n"]);

    const second = await built(dockerfile);
    expect(second.log).toContain("Using cache");
    expect(second.image.layers).toEqual(first.image.layers);
    await expectNothingLeft();

    await builds.builder.remove(first.id);
    expect(await readFile(join(second.image.layers.at(-1) ?? "", "srv/app/made.txt"), "utf8")).toBeTruthy();
    await builds.builder.remove(second.id);
    await builds.builder.remove(second.id);
    expect(await builds.builder.images()).not.toContain(second.id);
  });

  test("names the failed line of a failed build, and keeps no bytes of five failed builds", async () => {
    const failing =
      "FROM debian:12-slim\nRUN head -c 20M /dev/urandom > /big\nRUN echo looks bad >&2; exit 7\n";
    await build(failing);
    const bytes = async () => Number((await run(["du", "-sx", "--block-size=1", oci])).stdout.split("\t")[0]);
    const before = await bytes();
    const images = (await storeOf()).images.length;
    for (let turn = 0; turn < 5; turn += 1) {
      const { error, log } = await build(failing);
      expect(error?.kind).toBe("image_failed");
      expect(error?.message).toBe("RUN echo looks bad >&2; exit 7 failed: exit status 7");
      expect(log).toContain("looks bad");
    }
    expect((await storeOf()).images).toHaveLength(images);
    // The limit is less than a single failed build wrote.
    expect((await bytes()) - before).toBeLessThan(10 * 1024 ** 2);
    await expectNothingLeft();
  }, 600_000);

  test("ends at once when its owner aborts it, and leaves nothing on the host", async () => {
    const owner = new AbortController();
    const ending = build("FROM debian:12-slim\nRUN echo begun; sleep 1000\n", { signal: owner.signal });
    const waited = setInterval(async () => {
      const group = await run(["pgrep", "-f", "^sleep 1000$"], { okCodes: [0, 1] });
      if (group.stdout !== "") owner.abort();
    }, 200);
    const { error } = await ending;
    clearInterval(waited);
    expect(error?.kind).toBe("interrupted");
    await expectNothingLeft();
  });

  test("is killed at its deadline", async () => {
    const { error } = await build("FROM debian:12-slim\nRUN while :; do :; done\n", { timeoutMs: 4_000 });
    expect(error?.kind).toBe("timeout");
    await expectNothingLeft();
  });

  test("is killed when it fills the disk, with one file or with many files", async () => {
    const diskBytes = 200 * 1024 ** 2;
    const one = await build("FROM debian:12-slim\nRUN head -c 1G /dev/zero > /big\n", { diskBytes });
    expect(one.error).toBeDefined();
    const many = await build(
      "FROM debian:12-slim\nRUN i=0; while head -c 20M /dev/zero > /big$i; do i=$((i+1)); sleep 0.1; done\n",
      { diskBytes },
    );
    expect(many.error?.kind).toBe("too_large");
    await expectNothingLeft();
  });

  test("is limited to its own processes and memory when it forks without end or uses all memory", async () => {
    const bomb = await build(
      'FROM debian:12-slim\nRUN ["bash","-c","f() { f | f & }; f; sleep 3; false"]\n',
      {
        timeoutMs: 8_000,
      },
    );
    expect(bomb.error).toBeDefined();
    const hog = await build(
      "FROM debian:12-slim\nRUN held=$(head -c 1G /dev/zero | tr '\\0' x); echo $held | wc -c\n",
      {
        memoryBytes: 256 * 1024 ** 2,
      },
    );
    expect(hog.error?.kind).toBe("no_capacity");
    await expectNothingLeft();
  });
});

describe("a secret", () => {
  test("is visible to commands, and in no layer, history or log", async () => {
    const canary = "c4nary-0123456789abcdef";
    const { log, image } = await built(
      `FROM debian:12-slim
RUN test "$TOKEN" = ${canary.slice(0, 6)}"${canary.slice(6)}" && echo "it is $TOKEN" && env
RUN ["sh", "-c", "test -n \\"$TOKEN\\" && touch /seen"]
CMD ["true"]
`,
      { secrets: { TOKEN: canary, QUOTED: "it's\n$(id) `id`" } },
    );
    expect(log).toContain("it is [secret]");
    expect(log).not.toContain(canary);
    expect(JSON.stringify(image)).not.toContain(canary);
    const found = await run(["grep", "--recursive", "--files-with-matches", "--text", canary, oci], {
      okCodes: [0, 1],
      timeoutMs: 60_000,
    });
    expect(found.stdout).toBe("");
  });

  test("passes an index and its certificates to commands, and to no layer or log", async () => {
    const [canary, authority] = ["1ndex-c4nary-4711", "an authority's certificate"];
    const { log, image } = await built(
      `FROM debian:12-slim
RUN echo "from $PIP_INDEX_URL"; grep --count authority "$PIP_CERT"
USER nobody
RUN ["sh", "-c", "cat $PIP_CERT"]
`,
      {
        sources: {
          env: { PIP_INDEX_URL: `https://packages.test/${canary}/simple`, PIP_CERT: authoritiesPath },
          hidden: [canary],
          authorities: authority,
        },
      },
    );
    expect(log).toContain("from https://packages.test/[secret]/simple\n1\n");
    expect(log.match(/an authority's certificate/g)).toHaveLength(1);
    expect(log).not.toContain("kontor-authorities");
    const search = (text: string) => ["grep", "--recursive", "--files-with-matches", "--text", text, oci];
    for (const text of [canary, authority])
      expect((await run(search(text), { okCodes: [0, 1], timeoutMs: 60_000 })).stdout).toBe("");
    expect(JSON.stringify(image)).not.toContain(canary);
  });

  test("invalidates the cache of commands that use a changed secret", async () => {
    const dockerfile = "FROM debian:12-slim\nRUN echo $MODE > /mode\n";
    const one = await built(dockerfile, { secrets: { MODE: "first-mode" } });
    const two = await built(dockerfile, { secrets: { MODE: "other-mode" } });
    const modes = [one, two].map(({ image }) => readFile(join(image.layers.at(-1) ?? "", "mode"), "utf8"));
    expect(await Promise.all(modes)).toEqual(["first-mode\n", "other-mode\n"]);
  });

  test("keeps the cache of commands that cannot use a changed secret", async () => {
    const dockerfile =
      "FROM debian:12-slim\nRUN date +%N > /installed\nCOPY hello.txt ./\nRUN cat hello.txt; date +%N > /built\n";
    const one = await built(dockerfile, { secrets: { DATABASE_PASSWORD: "first-password" } });
    const two = await built(dockerfile, { secrets: { DATABASE_PASSWORD: "other-password", MORE: "more" } });
    expect(two.image.layers).toEqual(one.image.layers);
    await writeFile(join(checkout, "hello.txt"), "process.env.MORE\n");
    const three = await built(dockerfile, { secrets: { MORE: "once" } });
    const four = await built(dockerfile, { secrets: { MORE: "twice" } });
    expect(four.image.layers).not.toEqual(three.image.layers);
    expect(four.log).toContain("Using cache");
    expect(four.log).not.toContain("kontor-env");
  });
});

describe("a workspace", () => {
  test("has its own caches: neither layers nor cache mounts of another workspace are used", async () => {
    const dockerfile =
      "FROM debian:12-slim\nRUN --mount=type=cache,target=/cache cat /cache/poison 2>/dev/null; echo poison > /cache/poison\n";
    await built(dockerfile, { workspace: "mallory" });
    const other = await built(dockerfile, { workspace: "alice" });
    expect(other.log).not.toContain("Using cache");
    expect(other.log).not.toMatch(/^poison$/m);
    const again = await built(`${dockerfile}RUN true\n`.replace("cat", "cat  "), { workspace: "mallory" });
    expect(again.log).toMatch(/^poison$/m);
  });
});

describe("a step", () => {
  test("reaches the internet, but neither the host nor private ranges nor metadata", async () => {
    const tries = [
      [WEB_ADDRESS, 80],
      [UPLINK_ADDRESS, HOST_PORT],
      ["10.0.0.1", HOST_PORT],
      ["127.0.0.1", HOST_PORT],
      ["10.66.0.1", 80],
      [METADATA_ADDRESS, 80],
    ].map(
      ([host, port]) =>
        `(timeout 5 bash -c 'exec 3<>/dev/tcp/${host}/${port}' 2>/dev/null && echo ${host} open || echo ${host} shut)`,
    );
    const { log } = await built(`FROM debian:12-slim\nRUN ${tries.join("; ")}; getent hosts web.test\n`);
    const said = log.split("\n").filter((line) => / (?:open|shut)$/.test(line));
    expect(said).toEqual([
      `${WEB_ADDRESS} open`,
      `${UPLINK_ADDRESS} shut`,
      "10.0.0.1 shut",
      "127.0.0.1 shut",
      "10.66.0.1 shut",
      `${METADATA_ADDRESS} shut`,
    ]);
    expect(log).toMatch(new RegExp(`^${WEB_ADDRESS.replaceAll(".", "\\.")}\\s+web\\.test`, "m"));
  });

  test("has few capabilities, no devices and no view of the host", async () => {
    const { log } = await built(`FROM debian:12-slim
RUN grep CapEff /proc/self/status; grep Seccomp: /proc/self/status; mknod /tmp/disk b 8 0 2>&1; \
 ls /dev | tr '\\n' ' '; mount -t tmpfs none /mnt 2>&1; hostname; ps -e | wc -l; ls /proc/1/root/ >/dev/null && cat /proc/1/comm
`);
    // Allows CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETPCAP NET_BIND_SERVICE SYS_CHROOT SETFCAP.
    expect(log).toContain("CapEff:\t00000000800405fb");
    expect(log).toContain("Seccomp:\t2");
    expect(log).toMatch(/mknod: .*Operation not permitted/);
    expect(log).toMatch(/mount: .*(?:permission denied|must be superuser)/);
    expect(log).not.toMatch(/\b(?:sd|vd|loop)[a-z0-9]+\b/);
  });
});

describe("a context", () => {
  test("excludes its .git, and no symlink leads out of it", async () => {
    await symlink("/etc", join(checkout, "out"));
    await symlink("/etc/hostname", join(checkout, "name"));
    await mkdir(join(checkout, ".git"));
    await writeFile(join(checkout, ".git/config"), "secret");
    await writeFile(join(checkout, ".dockerignore"), "!.git\n");
    const copied = await build("FROM debian:12-slim\nCOPY out/shadow /taken\n");
    expect(copied.error).toBeDefined();
    const bound = await build("FROM debian:12-slim\nRUN --mount=type=bind,source=out,target=/m ls /m\n");
    expect(bound.error?.message).toContain("symlink");
    const all = await built("FROM debian:12-slim\nCOPY . /all/\nRUN ls -a /all; test ! -e /all/.git\n");
    expect(all.log).toContain("hello.txt");
    const outside = await build("FROM debian:12-slim\n", { context: "out" });
    expect(outside.error?.message).toContain("no directory out");
  });

  test("allows a bind mount of a path without symlinks", async () => {
    const { log } = await built(
      "FROM debian:12-slim\nRUN --mount=type=bind,source=hello.txt,target=/h cat /h; ! echo x > /h\n",
    );
    expect(log).toContain("hello\n");
  });
});

describe("an imported image", () => {
  test("keeps its digest, its configuration and its files, and shares its layers with an equal image", async () => {
    const first = await makeDownload("first");
    const { digest } = first;
    const one = await importDownload("app_pulled1", first);
    expect(one).toMatchObject({ digest, config: { Cmd: ["/hello"], ExposedPorts: { "8000/tcp": {} } } });
    const texts = await Promise.all(one.layers.map((layer) => readFile(join(layer, "hello.txt"), "utf8")));
    expect(texts).toEqual(["first\n"]);
    const two = await importDownload("app_pulled2", first);
    expect(two).toMatchObject({ digest, layers: one.layers });
    const [image] = (await storeOf()).images.filter((each) => each.digest === digest);
    expect(image?.names.toSorted()).toEqual([
      "localhost/kontor/app_pulled1:app",
      "localhost/kontor/app_pulled2:app",
    ]);
    await builds.builder.remove("app_pulled1");
    expect(await builds.builder.layers("app_pulled2")).toEqual(one.layers);
    await builds.builder.remove("app_pulled2");
    expect((await storeOf()).images.some((each) => each.digest === digest)).toBe(false);
    await expectNothingLeft();
  });

  test("leaves nothing on the host when a layer is damaged or larger than its disk", async () => {
    const before = (await storeOf()).images;
    const damaged = await makeDownload("second");
    await writeFile(join(damaged.directory, damaged.layer), "no archive");
    await expect(importDownload("app_damaged", damaged)).rejects.toMatchObject({ kind: "image_failed" });
    // A file of zeros compresses to a thousandth of its size.
    const bomb = await makeDownload("bomb", 400);
    await expect(importDownload("app_bomb", bomb, { diskBytes: 50 * 1024 ** 2 })).rejects.toMatchObject({
      kind: "too_large",
    });
    expect((await storeOf()).images).toEqual(before);
    expect(await builds.builder.images()).not.toContain("app_damaged");
    await expectNothingLeft();
  });
});

function importDownload(
  id: string,
  { directory, config }: { directory: string; config: string },
  more: { diskBytes?: number } = {},
) {
  return builds.builder.importImage(
    {
      id,
      workspace: "one",
      directory,
      config,
      memoryBytes: 1024 ** 3,
      vcpus: 2,
      diskBytes: 2 * 1024 ** 3,
      timeoutMs: 90_000,
      ...more,
    },
    { log: () => {}, signal: new AbortController().signal },
  );
}

/** Makes an image of one layer in the layout of a directory, as the server downloads it. */
async function makeDownload(text: string, zerosMb = 0) {
  const directory = join(builds.directory, `pulled-${text}`);
  const files = join(builds.directory, `files-${text}`);
  await mkdir(directory);
  await mkdir(files);
  await writeFile(join(files, "hello.txt"), `${text}\n`);
  await run(["truncate", `--size=${zerosMb}M`, join(files, "zeros")]);
  const archive = join(builds.directory, `${text}.tar`);
  await run(["tar", "--create", "--owner=0", "--group=0", "--file", archive, "--directory", files, "."]);
  const tar = await readFile(archive);
  const store = async (mediaType: string, bytes: Buffer) => {
    const hash = createHash("sha256").update(bytes).digest("hex");
    await writeFile(join(directory, hash), bytes);
    return { mediaType, digest: `sha256:${hash}`, size: bytes.length };
  };
  const layer = await store("application/vnd.oci.image.layer.v1.tar+gzip", gzipSync(tar));
  const diff = `sha256:${createHash("sha256").update(tar).digest("hex")}`;
  const config = {
    architecture: process.arch === "x64" ? "amd64" : process.arch,
    os: "linux",
    config: { Cmd: ["/hello"], ExposedPorts: { "8000/tcp": {} } },
    rootfs: { type: "layers", diff_ids: [diff] },
  };
  const configuration = await store(
    "application/vnd.oci.image.config.v1+json",
    Buffer.from(JSON.stringify(config)),
  );
  const manifest = JSON.stringify({
    schemaVersion: 2,
    mediaType: "application/vnd.oci.image.manifest.v1+json",
    config: configuration,
    layers: [layer],
  });
  await writeFile(join(directory, "manifest.json"), manifest);
  await writeFile(join(directory, "version"), "Directory Transport Version: 1.1\n");
  const digest = `sha256:${createHash("sha256").update(manifest).digest("hex")}`;
  return { directory, digest, config: configuration.digest, layer: layer.digest.slice("sha256:".length) };
}

test("names the available bases when an unknown base is requested", async () => {
  const { error } = await build("FROM registry.test/nobody/has:this\n");
  expect(error?.kind).toBe("image_failed");
  expect(error?.message).toContain("registry.test/nobody/has:this");
  expect(error?.message).toContain("node:22-slim");
});

test("deletes the leftovers of a killed server at the next start", async () => {
  const { id } = await built('FROM debian:12-slim\nCMD ["true"]\n');
  const left = join(oci, "builds/app_left");
  await mkdir(left, { recursive: true });
  await writeFile(join(left, "env"), "TOKEN='x'\n");
  await builds.restart();
  await expectNothingLeft();
  expect(await builds.builder.images()).toContain(id);
});
