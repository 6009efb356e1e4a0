import { expect, test } from "vitest";
import { parseDeb822 } from "@kontor/runtime/rootfs/sources.ts";
import { backportsSource, parseCandidate, parseStatus } from "./apt.ts";

test("converts apt's status lines to progress: the first half is fetching, the second installing", () => {
  expect(parseStatus("dlstatus:1:50.0000:Retrieving file 3 of 7")).toEqual({
    fraction: 0.25,
    text: "Retrieving file 3 of 7",
  });
  expect(parseStatus("pmstatus:nftables:50.0000:Unpacking nftables (amd64)")).toEqual({
    fraction: 0.75,
    text: "Unpacking nftables (amd64)",
  });
});

test("ignores apt's other lines", () => {
  expect(parseStatus("pmconffile:/etc/x : 1:'a' 'b'")).toBeUndefined();
  expect(parseStatus("media-change: disk")).toBeUndefined();
  expect(parseStatus("")).toBeUndefined();
});

test("configures backports from the host's own mirror, with Debian's key", () => {
  expect(parseDeb822(backportsSource("http://mirror.example/debian", "bookworm-backports"))).toEqual([
    {
      uris: ["http://mirror.example/debian"],
      suites: ["bookworm-backports"],
      components: ["main"],
      signedBy: "/usr/share/keyrings/debian-archive-keyring.gpg",
    },
  ]);
});

test("reads the version that apt would install, and none if apt does not know the package", () => {
  const policy = (candidate: string) =>
    `runsc:\n  Installed: (none)\n  Candidate: ${candidate}\n  Version table:\n`;
  expect(parseCandidate(policy("0.0~20240729.0-5"))).toBe("0.0~20240729.0-5");
  expect(parseCandidate(policy("(none)"))).toBeUndefined();
  expect(parseCandidate("")).toBeUndefined();
});
