import { expect, test } from "vitest";
import { expandAllowlist, type HostPrograms } from "./defaults.ts";

const printed: Record<string, string> = {
  npm: JSON.stringify({
    registry: "https://npm.registry.test/",
    "@ours:registry": "https://npm.ours.test:8443/npm/",
    noproxy: "https://not.a.registry.test/",
    "@odd:registry": "http://10.0.0.9/",
  }),
  "/usr/bin/python3 -m":
    "global.extra-index-url='file:///opt/simple https://pip.ours.test/simple'\nglobal.cert='/etc/ca.pem'\n",
  "/usr/bin/python3 -c": "https://index.python.test/ https://files.python.test\n",
  git: "url.https://user@git.ours.test/.insteadof https://elsewhere.test/\n",
};
const host: HostPrograms = {
  run: async ([program = "", flag = ""]) => printed[program] ?? printed[`${program} ${flag}`] ?? "",
  aptArchives: async () => ["http://deb.mirror.test/debian", "http://deb.mirror.test/debian-security"],
};

test("expands auto to the hosts of this host's apt, npm, pip and git without duplicates, and to the code forges", async () => {
  const expanded = await expandAllowlist(["auto"], host);
  expect(expanded).toContain("github.com");
  expect(expanded.filter((entry) => /test(:\d+)?$/.test(entry))).toEqual([
    "deb.mirror.test",
    "npm.registry.test",
    "npm.ours.test:8443",
    "pip.ours.test",
    "index.python.test",
    "files.python.test",
    "git.ours.test",
    "elsewhere.test",
  ]);
});

test("adds the setting's entries to auto if it includes auto, and replaces auto otherwise", async () => {
  expect(await expandAllowlist(["auto", "*.more.test", "git.ours.test"], host)).toContain("*.more.test");
  expect(await expandAllowlist(["only.test"], host)).toEqual(["only.test"]);
  expect(await expandAllowlist([], host)).toEqual([]);
});

test("expands auto to the forges alone on a host without these programs", async () => {
  const bare: HostPrograms = {
    run: async () => Promise.reject(new Error("not installed")),
    aptArchives: async () => Promise.reject(new Error("no Debian")),
  };
  expect((await expandAllowlist(["auto"], bare)).every((entry) => !entry.endsWith(".test"))).toBe(true);
});

test("ignores unreadable output of a program", async () => {
  const expanded = await expandAllowlist(["auto"], { ...host, run: async () => "{nonsense" });
  expect(expanded.filter((entry) => entry.endsWith(".test"))).toEqual(["deb.mirror.test"]);
});
