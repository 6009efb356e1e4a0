import { expect, test } from "vitest";
import { authoritiesOf, npmRegistryOf, proxiesOf } from "./registries.ts";

test("passes npm's configured registry, without credentials", () => {
  expect(npmRegistryOf("https://me:secret@npm.test/\n", "https://usual.test/\n")).toEqual({
    npm_config_registry: "https://npm.test/",
  });
  expect(npmRegistryOf("https://usual.test/\n", "https://usual.test/\n")).toEqual({});
});

test("trusts the certificates of pip and of the host, each once", () => {
  const [own, usual] = ["own", "usual"].map(
    (name) => `-----BEGIN CERTIFICATE-----\n${name}\n-----END CERTIFICATE-----`,
  );
  expect(authoritiesOf(`# ours\n${own}\n`, `${usual}\n${own}\n`)).toBe(`${own}\n${usual}\n`);
  expect(authoritiesOf("", `${usual}\n`)).toBeNull();
});

test("passes a proxy of this host in both letter cases, without credentials", () => {
  const env = { HTTPS_PROXY: "http://me:secret@proxy.test:3128", no_proxy: "intern.test" };
  expect(proxiesOf(env)).toEqual({
    https_proxy: "http://proxy.test:3128/",
    HTTPS_PROXY: "http://proxy.test:3128/",
    no_proxy: "intern.test",
    NO_PROXY: "intern.test",
  });
});

test.each([
  "http://127.0.0.1:3128",
  "http://localhost:3128",
  "http://10.1.2.3:80",
  "http://[::1]:80",
  "proxy",
])("omits a proxy that a build cannot reach: %s", (address) =>
  expect(proxiesOf({ http_proxy: address, no_proxy: "x" })).toEqual({}),
);
