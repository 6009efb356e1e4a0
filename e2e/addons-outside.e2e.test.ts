/**
 * Public add-ons on an address beyond loopback. Clients reach the add-ons from outside only by TLS, at their returned
 * addresses. The outside is the namespace that simulates the internet.
 */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run } from "@kontor/runtime/exec.ts";
import { UPLINK_ADDRESS } from "@kontor/runtime/network/testing/internet.ts";
import { afterAll, beforeAll, describe, expect, inject, test } from "vitest";
import { type Addon, createAddon } from "./support/addons.ts";
import { makeProject } from "./support/projects.ts";
import { type Server, startServer } from "./support/server.ts";

const name = "db.kontor.test";
const directory = mkdtempSync(join(tmpdir(), "kontor-outside-"));
const hosts = join(directory, "hosts");
let server: Server;
let ca: string;
const addons: Partial<Record<"postgres" | "redis", Addon>> = {};

beforeAll(async () => {
  writeFileSync(hosts, `127.0.0.1 localhost\n${UPLINK_ADDRESS} ${name}\n`);
  server = await startServer(
    {
      KONTOR_POOL_SIZE: "0",
      KONTOR_UPLINK: inject("internet"),
      KONTOR_ADDONS_HOST: UPLINK_ADDRESS,
      KONTOR_ADDONS_PUBLIC_NAME: name,
      KONTOR_ADDONS_PORTS: "25420-25429",
    },
    ["postgres-15", "redis-7"],
  );
  ca = join(server.dataDir, "ca.crt");
  const project = await makeProject(server);
  for (const kind of ["postgres", "redis"] as const)
    addons[kind] = await createAddon(server, project.id, { kind, size: "small", public: true });
});
afterAll(async () => {
  rmSync(directory, { recursive: true, force: true });
  await server?.destroy();
});

/** Runs a program in the simulated internet, where the name resolves to this host. */
function outside(argv: string[], env: Record<string, string> = {}) {
  const here = ["sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', hosts];
  const place = [`--net=/run/netns/${inject("internet")}`, "unshare", "--mount", "--propagation", "private"];
  return run(["nsenter", ...place, ...here, ...argv], {
    cwd: import.meta.dirname,
    okCodes: [0, 1, 2],
    timeoutMs: 30_000,
    env: { PATH: process.env["PATH"] ?? "", HOME: directory, ...env },
  });
}

function script(text: string, url: string) {
  return outside([process.execPath, "--input-type=module", "-e", text, url], { NODE_EXTRA_CA_CERTS: ca });
}

const urlOf = (kind: "postgres" | "redis") => addons[kind]!.public_connection_url!;

describe("PostgreSQL", () => {
  test("psql connects with encryption, and verifies the certificate's name", async () => {
    const url = urlOf("postgres");
    expect(url).toMatch(/^postgresql:\/\/kontor:\w+@db\.kontor\.test:254\d\d\/kontor\?sslmode=require$/);
    const select = ["-XAtq", "-c", "select 'here'"];
    expect((await outside(["psql", url, ...select])).stdout).toBe("here\n");
    const verified = `${url.replace("sslmode=require", "sslmode=verify-full")}&sslrootcert=${ca}`;
    expect((await outside(["psql", verified, ...select])).stdout).toBe("here\n");
    const renamed = `${verified.replace(name, "localhost")}&hostaddr=${UPLINK_ADDRESS}`;
    expect((await outside(["psql", renamed, ...select])).stderr).toMatch(/does not match host name/);
  });

  test("refuses psql without TLS, and names the cure", async () => {
    const plain = urlOf("postgres").replace("sslmode=require", "sslmode=disable");
    const { code, stderr } = await outside(["psql", plain, "-c", "select 1"]);
    expect([code, stderr]).toEqual([2, expect.stringContaining("connect with sslmode=require")]);
  });

  test("the client library pg connects", async () => {
    const { stdout, stderr } = await script(
      `import pg from "pg";
      const client = new pg.Client({ connectionString: process.argv[1] });
      await client.connect();
      await client.query("create table pens (colour text)");
      await client.query("insert into pens values ('blue')");
      const { rows } = await client.query("table pens");
      console.log(JSON.stringify(rows), client.connection.stream.encrypted);
      await client.end();`,
      urlOf("postgres"),
    );
    expect(stdout, stderr).toBe('[{"colour":"blue"}] true\n');
  });
});

describe("Redis", () => {
  test("redis-cli connects", async () => {
    const url = urlOf("redis");
    expect(url).toMatch(/^rediss:\/\/kontor:\w+@db\.kontor\.test:254\d\d$/);
    const ask = (...argv: string[]) =>
      outside(["redis-cli", "--no-auth-warning", "-u", url, "--cacert", ca, ...argv]);
    expect((await ask("set", "pen", "blue")).stdout).toBe("OK\n");
    expect((await ask("get", "pen")).stdout).toBe("blue\n");
    const plain = await outside([
      "redis-cli",
      "--no-auth-warning",
      "-u",
      url.replace("rediss", "redis"),
      "ping",
    ]);
    expect(plain.stdout).not.toContain("PONG");
  });

  test("the client library ioredis connects", async () => {
    const { stdout, stderr } = await script(
      `import { Redis } from "ioredis";
      const client = new Redis(process.argv[1], { retryStrategy: () => null });
      await client.rpush("pens", "blue", "red");
      console.log(JSON.stringify(await client.lrange("pens", 0, -1)), client.stream.encrypted);
      client.disconnect();`,
      urlOf("redis"),
    );
    expect(stdout, stderr).toBe('["blue","red"] true\n');
  });
});
