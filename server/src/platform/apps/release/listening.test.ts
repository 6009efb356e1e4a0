import { expect, test } from "vitest";
import { portsIn } from "./listening.ts";

test("returns only listening ports from the kernel's IPv4 and IPv6 tables", () => {
  const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:0BB8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12 1 0 100 0 0 10 0
   1: 0100007F:1F90 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 13 1 0 20 4 30 10 -1
   2: 00000000000000000000000000000000:2382 00000000000000000000000000000000:0000 0A 00000000:00000000 0 0
not a line: FFFF 0A
`;
  expect(portsIn(table)).toEqual([3000, 9090]);
  expect(portsIn("\0".repeat(10))).toEqual([]);
});
