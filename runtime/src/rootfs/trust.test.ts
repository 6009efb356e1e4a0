import { afterEach, expect, test, vi } from "vitest";
import { BUNDLE, npmEnvironment } from "./trust.ts";

afterEach(() => vi.unstubAllEnvs());

test("makes npm on this host trust the host's certificates, unless its owner configured others", () => {
  vi.stubEnv("NODE_EXTRA_CA_CERTS", undefined);
  expect(npmEnvironment()["NODE_EXTRA_CA_CERTS"]).toBe(BUNDLE);
  vi.stubEnv("NODE_EXTRA_CA_CERTS", "/etc/own.crt");
  expect(npmEnvironment()).toMatchObject({ NODE_EXTRA_CA_CERTS: "/etc/own.crt", PATH: process.env["PATH"] });
});
