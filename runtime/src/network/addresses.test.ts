import { expect, test } from "vitest";
import {
  instanceNames,
  MAX_SLOT,
  serviceAddress,
  slotNames,
  slotOfAddress,
  slotOfName,
} from "./addresses.ts";
import { addressSlot, gatewayOnLoopback, makeSlot, removeSlot } from "./links.ts";

test("gives every slot of every instance its own address, never the gateway's address", () => {
  for (const instance of [0, 63]) {
    const slots = Array.from({ length: MAX_SLOT + 1 }, (_, slot) => slot);
    const addresses = slots.map((slot) => slotNames(instance, slot).address);
    expect(new Set([instanceNames(instance).gateway, ...addresses]).size).toBe(slots.length + 1);
    expect(addresses.map((address) => slotOfAddress(instance, address))).toEqual(slots);
  }
});

test("makes names that fit the kernel's 15 characters and distinguish instances", () => {
  expect(slotNames(63, MAX_SLOT).hostInterface).toBe("kv63-65533");
  expect(slotOfName(6, "kv61-0")).toBeUndefined();
  expect(slotOfName(61, "kv61-0")).toBe(0);
  expect(slotOfName(61, "kv61-x")).toBeUndefined();
  expect(slotOfAddress(61, "100.64.0.1")).toBeUndefined();
});

test("rejects an instance or a slot out of range", () => {
  expect(() => instanceNames(64)).toThrow("0 to 63");
  expect(() => slotNames(0, MAX_SLOT + 1)).toThrow("0 to 65533");
  expect(() => slotNames(0, 1.5)).toThrow("whole number");
});

test("gives each service its own address, from the first to the last", () => {
  expect([0, 255, MAX_SLOT].map(serviceAddress)).toEqual(["198.19.0.1", "198.19.1.0", "198.19.255.254"]);
  for (const index of [-1, 1.5, MAX_SLOT + 1]) {
    expect(() => serviceAddress(index)).toThrow("0 to 65533");
  }
});

test("creates a slot's namespace and veth pair with a static neighbour, then configures the machine's end", () => {
  expect(makeSlot(61, 5)).toBe(`netns add kv61-5
link add kv61-5 address 02:00:0a:00:00:01 type veth peer name eth0 address 02:00:0a:00:00:02 netns kv61-5
addr add 100.125.255.255/32 dev kv61-5 scope link
link set kv61-5 up
neigh add 100.125.0.6 lladdr 02:00:0a:00:00:02 nud permanent dev kv61-5
route add 100.125.0.6/32 dev kv61-5 src 100.125.255.255
`);
  expect(addressSlot()).toBe(`link set lo up
addr replace 10.0.0.2/30 dev eth0
link set eth0 up
route replace default via 10.0.0.1 dev eth0
`);
  expect(removeSlot(61, 5)).toBe("link del kv61-5\nnetns del kv61-5\n");
  expect(gatewayOnLoopback(61, "replace")).toBe("addr replace 100.125.255.255/32 dev lo scope host\n");
});
