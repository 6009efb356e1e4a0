import { expect, test } from "vitest";
import { hbaFile, identFile, initdbArguments, postgresArguments } from "./settings.ts";
import { libraryLinks, parsePasswd } from "./files.ts";
import { parsePostmasterFile } from "./postmaster.ts";

test("listens on no network, and lets only the named accounts connect", () => {
  const argv = postgresArguments(
    { data: "/d", socket: "/s", log: "/l", hba: "/h", ident: "/i" },
    { fsync: "off" },
  );
  expect(argv.slice(0, 4)).toEqual(["-D", "/d", "-c", "listen_addresses="]);
  expect(argv).toContain("unix_socket_permissions=0700");
  expect(argv.at(-1)).toBe("fsync=off");
  expect(hbaFile).toBe("local all all peer map=kontor\n");
  expect(identFile(["root", 'o"dd'])).toBe('kontor "root" kontor\nkontor "o""dd" kontor\n');
});

test("sorts by code point in a new cluster, whatever the host's locale", () => {
  expect(initdbArguments("/d")).toContain("--builtin-locale=C.UTF-8");
});

test("converts the package's list to relative links", () => {
  const list =
    '[{"source":"native/lib/libpq.so.5.18","target":"native/lib/libpq.so"},{"source":"native/lib/a","target":"native/lib/deep/b"}]';
  expect(libraryLinks(list)).toEqual([
    { path: "lib/libpq.so", to: "libpq.so.5.18" },
    { path: "lib/deep/b", to: "../a" },
  ]);
});

test("parses a complete lock file, and returns undefined for a partial one", () => {
  expect(parsePostmasterFile("12\n/d\n1\n5432\n/run/x\n\n1 2\nready\n")).toEqual({
    pid: 12,
    socketDirectory: "/run/x",
  });
  expect(parsePostmasterFile("12\n/d\n")).toBeUndefined();
  expect(parsePostmasterFile("")).toBeUndefined();
});

test("parses accounts of passwd", () => {
  expect(parsePasswd("root:x:0:0:r:/root:/bin/sh\n\nnobody:x:65534:65534::/:/x\n")).toEqual([
    { name: "root", uid: 0, gid: 0 },
    { name: "nobody", uid: 65534, gid: 65534 },
  ]);
});
