import { describe, expect, test } from "vitest";
import { pythonIndexesOf } from "./python-indexes.ts";

const of = (...lines: string[]) => pythonIndexesOf(lines.join("\n"), () => true);

test("passes indexes, trusted hosts and certificates to pip and uv", () => {
  const { env, cert } = of(
    "global.cert='/etc/own.pem'",
    "global.extra-index-url='https://a.test/simple https://b.test/simple'",
    "global.index-url='https://main.test/simple'",
    "global.timeout='60'",
    "global.trusted-host='a.test b.test:8443'",
  );
  expect(env).toEqual({
    PIP_INDEX_URL: "https://main.test/simple",
    UV_DEFAULT_INDEX: "https://main.test/simple",
    PIP_EXTRA_INDEX_URL: "https://a.test/simple https://b.test/simple",
    UV_INDEX: "https://a.test/simple https://b.test/simple",
    PIP_TRUSTED_HOST: "a.test b.test:8443",
    UV_INSECURE_HOST: "a.test b.test:8443",
    PIP_NO_INPUT: "1",
  });
  expect(cert).toBe("/etc/own.pem");
});

test("passes no variables without a pip configuration", () => {
  expect(of("")).toEqual({ env: {}, hidden: [], cert: null });
  expect(of("global.index-url=''", "global.timeout='60'")).toEqual({ env: {}, hidden: [], cert: null });
});

test("prefers settings for install to global settings, and the environment to both", () => {
  const index = (section: string) => `${section}.index-url='https://${section.replaceAll(":", "")}.test/'`;
  expect(of(index(":env:"), index("global"), index("install")).env["PIP_INDEX_URL"]).toBe(
    "https://env.test/",
  );
  expect(of(index("global"), index("install")).env["PIP_INDEX_URL"]).toBe("https://install.test/");
  expect(of(index("global"), index("download")).env["PIP_INDEX_URL"]).toBe("https://global.test/");
});

test("reads values in Python's notation: several lines, quotes and other characters", () => {
  const { env } = of(
    String.raw`global.extra-index-url='\nhttps://a.test/simple\nhttps://b.test/simple'`,
    `global.index-url="https://me:it's@main.test/simple"`,
  );
  expect(env["PIP_EXTRA_INDEX_URL"]).toBe("https://a.test/simple https://b.test/simple");
  expect(URL.parse(env["PIP_INDEX_URL"] ?? "")?.password).toBe("it's");
  expect(of(String.raw`global.cert='/etc/b\xfccher\\own.pem'`).cert).toBe("/etc/bücher\\own.pem");
});

test("leaves out paths on this host's disk, and an additional index that builds cannot reach", () => {
  const extras =
    "global.extra-index-url='file:///opt/simple https://there.test/simple http://10.1.2.3/simple'";
  const isReached = (hostname: string) => hostname !== "10.1.2.3";
  expect(pythonIndexesOf(extras, isReached).env["PIP_EXTRA_INDEX_URL"]).toBe("https://there.test/simple");
  expect(pythonIndexesOf("global.index-url='file:///opt/simple'", isReached).env).toEqual({});
  // Another index has other packages under the same names.
  const only = pythonIndexesOf("global.index-url='http://10.1.2.3/simple'", isReached);
  expect(only.env["PIP_INDEX_URL"]).toBe("http://10.1.2.3/simple");
});

test("omits a trusted host with an invalid name", () => {
  expect(of("global.trusted-host='a.test *.b.test https://c.test --x'").env).toEqual({
    PIP_TRUSTED_HOST: "a.test",
    UV_INSECURE_HOST: "a.test",
  });
});

describe("passes an index with its credentials, and hides them in logs:", () => {
  test.each([
    ["a password", "https://reader:pa55@i.test/simple", ["pa55"]],
    [
      "a password with other characters",
      "https://reader:p%40ss%2Fword@i.test/simple",
      ["p%40ss%2Fword", "p@ss/word"],
    ],
    ["a token in the place of a name", "https://sometoken@i.test/simple", ["sometoken"]],
    [
      "a token beside a word",
      "https://tok3n-4711:x-oauth-basic@i.test/simple",
      ["x-oauth-basic", "tok3n-4711"],
    ],
    ["a token in the path", "https://i.test/c4n4ry4711/python/simple", ["c4n4ry4711"]],
    [
      "a token of letters in the path",
      "https://i.test/abcdefghijklmnopqrst/simple/",
      ["abcdefghijklmnopqrst"],
    ],
    ["a token in the query", "https://i.test/simple?key=c4n4ry&x=1", ["key=c4n4ry&x=1", "c4n4ry", "1"]],
  ])("%s", (_, address, hidden) => {
    const told = of(`global.extra-index-url='${address}'`);
    expect(told.env["PIP_EXTRA_INDEX_URL"]).toBe(address);
    expect(told.hidden.toSorted()).toEqual(hidden.toSorted());
  });

  test("shows ordinary words of an index's address in logs", () => {
    const address = "https://reader:pa55word@i.test/artifactory/api/pypi/pypi-remote/simple";
    expect(of(`global.index-url='${address}'`).hidden).toEqual(["pa55word"]);
  });
});
