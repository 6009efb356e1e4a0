import { expect, test } from "vitest";
import { ownAddresses, parseOpenedHosts } from "#lib/network/addresses.ts";
import { allowedAddresses } from "#lib/network/allowed-addresses.ts";

const address = "93.184.215.14";
const own = new Set([address]);
const owner = "workspace";
const nothing = parseOpenedHosts([]);

test("refuses a public address of this server, unless the operator allowed it", async () => {
  await expect(allowedAddresses(nothing, address, { owner, own })).rejects.toThrow(
    "an address of this server",
  );
  for (const opened of [address, "93.184.215.0/24"])
    expect(await allowedAddresses(parseOpenedHosts([opened]), address, { owner, own })).toEqual([address]);
  expect(await allowedAddresses(nothing, address, { owner, own: new Set() })).toEqual([address]);
});

test("returns the addresses of this server's network interfaces", () => {
  expect(ownAddresses()).toContain("127.0.0.1");
});
