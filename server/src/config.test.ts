import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { ConfigError, describeConfig, loadConfig } from "./config.ts";

const dataDir = mkdtempSync(join(tmpdir(), "kontor-config-"));
afterAll(() => rmSync(dataDir, { recursive: true }));

function load(env: NodeJS.ProcessEnv, file = "", overrides = {}) {
  writeFileSync(join(dataDir, "kontor.toml"), file);
  return loadConfig({ env: { PATH: "/bin", ...env }, dataDir, overrides });
}

function problems(env: NodeJS.ProcessEnv, file = "", overrides = {}): readonly string[] {
  try {
    load(env, file, overrides);
  } catch (error) {
    if (error instanceof ConfigError) return error.problems;
    throw error;
  }
  return [];
}

test("gives every key its default and freezes the configuration when nothing is set", () => {
  const config = load({});
  expect(config).toMatchObject({ port: 8080, host: "127.0.0.1", dataDir, runtime: "gvisor", instance: null });
  expect(() => Object.assign(config, { port: 1 })).toThrow(TypeError);
});

test("prefers a flag to the environment, the environment to the file, and the file to the default", () => {
  const file =
    'port = 1000\npool_size = 3\nmemory_overcommit = 2.5\npool_templates = ["a", "b"]\nrate_limits = false';
  const config = load({ KONTOR_PORT: "2000", KONTOR_HOST: "0.0.0.0" }, file, { port: "3000" });
  expect(config).toMatchObject({
    port: 3000,
    host: "0.0.0.0",
    poolSize: 3,
    memoryOvercommit: 2.5,
    rateLimits: false,
  });
  expect(config.poolTemplates).toEqual(["a", "b"]);
  const sources = Object.fromEntries(describeConfig(config).map(({ name, source }) => [name, source]));
  expect(sources).toMatchObject({
    port: "flag",
    host: "environment",
    pool_size: "file",
    pool_max: "default",
  });
});

test("refuses an unknown name, and suggests the nearest known name", () => {
  expect(problems({ KONTOR_PROT: "1" })).toEqual(["KONTOR_PROT is not a setting, did you mean KONTOR_PORT?"]);
  expect(problems({ KONTOR_NOTHING_LIKE_IT_AT_ALL: "1" })).toEqual([
    "KONTOR_NOTHING_LIKE_IT_AT_ALL is not a setting",
  ]);
  // The server ignores variables of clients.
  expect(problems({ KONTOR_URL: "http://127.0.0.1:1", KONTOR_TOKEN: "svc_x" })).toEqual([]);
  expect(problems({}, "pool_sise = 1")).toEqual([
    `${dataDir}/kontor.toml: pool_sise is not a setting, did you mean pool_size?`,
  ]);
  expect(problems({}, 'data_dir = "/x"')[0]).toContain("data_dir is not a setting");
});

test("requires public names when a public certificate authority is set", () => {
  expect(problems({ KONTOR_TLS_MODE: "acme" })).toEqual([
    "KONTOR_PREVIEW_DOMAIN: tls_mode = acme requires a public name, not localhost",
    "KONTOR_APPS_DOMAIN: tls_mode = acme requires a public name, not apps.localhost",
  ]);
  const names = { KONTOR_PREVIEW_DOMAIN: "example.org", KONTOR_APPS_DOMAIN: "apps.example.org:8443" };
  expect(load({ KONTOR_TLS_MODE: "acme", ...names }).appsDomain).toBe("apps.example.org:8443");
});

test("accepts a complete object store, and names each missing setting of an incomplete one", () => {
  const some = { KONTOR_BACKUPS_STORE: "s3", KONTOR_BACKUPS_S3_ENDPOINT: "https://s3.example.com" };
  expect(problems(some)).toEqual([
    "KONTOR_BACKUPS_S3_BUCKET: required for backups_store = s3",
    "KONTOR_BACKUPS_S3_ACCESS_KEY: required for backups_store = s3",
    "KONTOR_BACKUPS_S3_SECRET_KEY: required for backups_store = s3",
  ]);
  const rest = { BUCKET: "kept", ACCESS_KEY: "AK", SECRET_KEY: "canary" };
  const all = Object.entries(rest).map(([name, value]) => [`KONTOR_BACKUPS_S3_${name}`, value]);
  expect(problems({ ...some, ...Object.fromEntries(all) })).toEqual([]);
});

test("adds the TLS port to default domains, and leaves given domains unchanged", () => {
  const moved = load({ KONTOR_TLS_PORT: "9443", KONTOR_APPS_DOMAIN: "apps.example.org" });
  expect([moved.previewDomain, moved.appsDomain]).toEqual(["localhost:9443", "apps.example.org"]);
  expect(load({ KONTOR_TLS_PORT: "443" }).previewDomain).toBe("localhost");
  expect(load({ KONTOR_TLS_PORT: "0" }).previewDomain).toBe("localhost:8443");
});

test("accepts addresses but no names as trusted proxies", () => {
  expect(load({ KONTOR_TRUSTED_PROXIES: "10.0.0.1, fd00::/8" }).trustedProxies).toEqual([
    "10.0.0.1",
    "fd00::/8",
  ]);
  expect(problems({ KONTOR_TRUSTED_PROXIES: "proxy.lan" })).toHaveLength(1);
});

test("refuses an invalid value, and names the key, the expected values and the given value", () => {
  expect(problems({ KONTOR_PORT: "http" })).toEqual([
    'KONTOR_PORT: expected a whole number from 0 to 65535, got "http"',
  ]);
  expect(problems({ KONTOR_PORT: "0x10" })).toHaveLength(1);
  expect(problems({}, "port = 99999")[0]).toContain("kontor.toml: port: expected a whole number");
  expect(problems({}, "[port]\nx = 1")[0]).toContain("expected a whole number");
  expect(problems({}, "port = [")[0]).toContain("kontor.toml: ");
  expect(problems({}, "", { port: "x" })[0]).toContain("--port: expected");
});

test("reports all errors of a configuration together", () => {
  expect(
    problems({ KONTOR_PORT: "x", KONTOR_POOL_SIZE: "-1", KONTOR_NOPE: "1" }, "log_level = 'loud'"),
  ).toHaveLength(4);
});

test("never prints a secret, whether it is valid or not", () => {
  const key = "0123456789abcdef".repeat(4);
  const config = load({ KONTOR_SECRETS_KEY: key, DATABASE_URL: "postgres://me:canary@db/x" });
  expect(config.secretsKey).toEqual(Buffer.from(key, "hex"));
  expect(config.databaseUrl).toBe("postgres://me:canary@db/x");
  expect(JSON.stringify(describeConfig(config))).not.toMatch(/canary|0123456789abcdef/);
  expect(problems({ KONTOR_SECRETS_KEY: "canary" }).join()).not.toContain("canary");
});

test("treats an empty variable as not set", () => {
  expect(load({ KONTOR_PORT: "" }).port).toBe(8080);
});

test("refuses the fake runtime unless a second setting allows it", () => {
  expect(problems({ KONTOR_RUNTIME: "fake" })[0]).toContain("KONTOR_ALLOW_FAKE_RUNTIME=1");
  expect(load({ KONTOR_RUNTIME: "fake", KONTOR_ALLOW_FAKE_RUNTIME: "1" }).runtime).toBe("fake");
});

test("describes every key once, and accepts each printed value as input", () => {
  const rows = describeConfig(load({}));
  expect(new Set(rows.map(({ env }) => env)).size).toBe(rows.length);
  for (const { env, value } of rows) {
    if (value !== "(not set)" && value !== "")
      expect(problems({ [env]: value }), `${env}=${value}`).toEqual([]);
  }
});

test("reads the groups of images to prepare, and refuses others", () => {
  const groups = (value: string) => load({ KONTOR_PREPARE_IMAGES: value }).prepareImages;
  expect(load({}).prepareImages).toEqual([]);
  expect(groups("none")).toEqual([]);
  expect(groups("all")).toEqual(["addons", "functions", "apps"]);
  expect(groups("apps, addons")).toEqual(["addons", "apps"]);
  for (const wrong of ["database", "addons,databases", "none,addons"])
    expect(problems({ KONTOR_PREPARE_IMAGES: wrong })).toEqual([
      expect.stringContaining("none, all, or a list of addons, functions, apps"),
    ]);
});
