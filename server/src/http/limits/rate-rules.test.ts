import { expect, test } from "vitest";
import { addressHolder } from "./rate-rules.ts";

test("counts an IPv4 address alone and an IPv6 address by its /64", () => {
  expect(addressHolder("192.0.2.7")).toBe("192.0.2.7");
  expect(addressHolder("::ffff:192.0.2.7")).toBe("192.0.2.7");
  expect(addressHolder("2001:db8:1:2:3:4:5:6")).toBe("2001:db8:1:2::/64");
  expect(addressHolder("2001:db8:1:2::9")).toBe("2001:db8:1:2::/64");
  expect(addressHolder("2001:db8::1")).toBe("2001:db8:0:0::/64");
  expect(addressHolder("::1")).toBe("0:0:0:0::/64");
  expect(addressHolder("fe80::1%eth0")).toBe("fe80:0:0:0::/64");
});
