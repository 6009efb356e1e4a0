import { expect, test } from "vitest";
import { isBranchName } from "../names.ts";
import { parseRemote, resolveRemote } from "./remotes.ts";

test.each([
  ["https://forge.test/team/shop.git", "https", "forge.test"],
  ["HTTPS://Forge.test:8443/a/b", "https", "forge.test"],
  ["http://forge.lan/a", "http", "forge.lan"],
  ["ssh://git@forge.test:2222/a/b.git", "ssh", "forge.test"],
  ["ssh://forge.test/a", "ssh", "forge.test"],
  ["git@forge.test:a/b.git", "ssh", "forge.test"],
  ["git@[2001:db8::1]:a", "ssh", "2001:db8::1"],
])("parses the address %s as %s on host %s", (text, kind, host) => {
  expect(parseRemote(text)).toMatchObject({ kind, host });
});

test.each([
  "file:///etc",
  "/etc",
  "./x",
  "../x",
  "git://forge.test/a",
  "ext::sh -c id",
  "fd::7",
  "ext::id",
  "--upload-pack=id",
  "-oProxyCommand=id",
  "ssh://-oProxyCommand=id/x",
  "ssh://-l@forge.test/x",
  "-oProxyCommand=id@forge.test:x",
  "git@-oProxyCommand=id:x",
  "git@forge.test:-x",
  "git@forge.test::x",
  "https://user@forge.test/x",
  "https://user:word@forge.test/x",
  "ssh://git:word@forge.test/x",
  "https://forge.test",
  "https://forge.test/a b",
  "https://forge.test/a\nb",
  "https://forge.test/a?x=1",
  "ssh://forge.test/a#b",
  "ssh://fo%20rge.test/a",
  "",
])("rejects %j as a remote address", (text) => {
  expect(parseRemote(text)).toBeUndefined();
});

test.each([
  ["https://forge.test/team/shop.git", "../lib.git", "https://forge.test/team/lib.git"],
  ["https://forge.test/team/shop.git", "./lib", "https://forge.test/team/shop.git/lib"],
  ["https://forge.test/team/shop.git", "../../other/lib", "https://forge.test/other/lib"],
  ["https://forge.test:8443/a/b/", "../c", "https://forge.test:8443/a/c"],
  ["ssh://git@forge.test:22/a/b", "../c", "ssh://git@forge.test:22/a/c"],
  ["git@forge.test:team/shop.git", "../lib.git", "git@forge.test:team/lib.git"],
  ["git@forge.test:team/shop.git", "https://other.test/x", "https://other.test/x"],
])("resolves for a repository at %s the submodule address %s to %s", (base, text, address) => {
  expect(resolveRemote(parseRemote(base)!, text)?.address).toBe(address);
});

test("refuses a relative address that leads above its host", () => {
  expect(resolveRemote(parseRemote("git@forge.test:shop")!, "../../x")).toBeUndefined();
  expect(resolveRemote(parseRemote("https://forge.test/a")!, "../../../x")?.address ?? "none").not.toContain(
    "..",
  );
  expect(resolveRemote(null, "../x")).toBeUndefined();
});

test("accepts the branch names that git accepts, but none that looks like an option", () => {
  for (const name of ["main", "feature/x", "v1.2", "ü", "a-b", "a@b"]) expect(isBranchName(name)).toBe(true);
  const bad = [
    "-x",
    "a..b",
    "a b",
    "a~1",
    "a^",
    "a:b",
    "/a",
    "a/",
    "a//b",
    ".a",
    "a/.b",
    "a.lock",
    "a.",
    "@",
    "a@{1}",
    "HEAD",
    "\\",
    "a\u0000",
  ];
  for (const name of bad) expect([name, isBranchName(name)]).toEqual([name, false]);
});
