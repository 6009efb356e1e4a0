import { afterEach, expect, test, vi } from "vitest";
import { BUNDLE, npmEnvironment } from "./trust.ts";

afterEach(() => vi.unstubAllEnvs());

test("npm on this host trusts whom the host trusts, unless its owner says whom", () => {
  vi.stubEnv("NODE_EXTRA_CA_CERTS", undefined);
  expect(npmEnvironment()["NODE_EXTRA_CA_CERTS"]).toBe(BUNDLE);
  vi.stubEnv("NODE_EXTRA_CA_CERTS", "/etc/own.crt");
  expect(npmEnvironment()).toMatchObject({ NODE_EXTRA_CA_CERTS: "/etc/own.crt", PATH: process.env["PATH"] });
});
