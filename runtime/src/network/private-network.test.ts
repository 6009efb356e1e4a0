import { expect, test } from "vitest";
import type { PrivateNetwork } from "../driver.ts";
import { MAX_SLOT, serviceAddress } from "./addresses.ts";
import { checkPrivateNetwork } from "./private-network.ts";

const SERVES = { name: "db.shop.internal", address: serviceAddress(0), ports: [5432] };
const check = (privateNetwork?: PrivateNetwork) => () =>
  checkPrivateNetwork(privateNetwork === undefined ? {} : { privateNetwork });

test("accepts a machine without a group, in a group, and with a service", () => {
  expect(check()).not.toThrow();
  expect(check({ group: "7f2c1b7e-0000-4000-8000-000000000000" })).not.toThrow();
  expect(check({ group: "a", serves: SERVES })).not.toThrow();
  expect(check({ group: "a", serves: { ...SERVES, address: serviceAddress(MAX_SLOT) } })).not.toThrow();
});

test("rejects values that rules or names do not allow, and names the field", () => {
  const serving = (change: Partial<typeof SERVES>) => check({ group: "a", serves: { ...SERVES, ...change } });
  for (const group of ["", "a".repeat(65), "a b", 'a" }'])
    expect(check({ group })).toThrow("privateNetwork.group");
  const long = `${"a.".repeat(130)}internal`;
  for (const name of [
    "db",
    "internal",
    ".internal",
    "db.internal.",
    "DB.internal",
    "-a.internal",
    "a..internal",
    long,
  ]) {
    expect(serving({ name })).toThrow("privateNetwork.name");
  }
  for (const address of [
    "198.18.0.1",
    "198.19.0.0",
    "198.19.255.255",
    "198.19.0.256",
    "198.19.00.1",
    "10.0.0.2",
  ]) {
    expect(serving({ address })).toThrow("privateNetwork.address");
  }
  for (const ports of [[], [0], [65_536], [1.5], Array.from({ length: 17 }, (_, port) => port + 1)]) {
    expect(serving({ ports })).toThrow("privateNetwork.ports");
  }
});
