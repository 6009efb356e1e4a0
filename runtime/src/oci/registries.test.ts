import { expect, test } from "vitest";
import { proxiesOf, registriesOf } from "./registries.ts";

test("a registry that somebody configured is handed on, without credentials", () => {
  const pip = "global.index-url='https://me:secret@pip.test/simple'\n";
  expect(registriesOf("https://npm.test/", "https://usual.test/", pip)).toEqual({
    npm_config_registry: "https://npm.test/",
    PIP_INDEX_URL: "https://pip.test/simple",
    UV_DEFAULT_INDEX: "https://pip.test/simple",
  });
  expect(registriesOf("https://usual.test/", "https://usual.test/", "")).toEqual({});
});

test("a proxy of this host's is handed on in both cases, without credentials", () => {
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
])("one that a build does not reach is not: %s", (address) =>
  expect(proxiesOf({ http_proxy: address, no_proxy: "x" })).toEqual({}),
);
