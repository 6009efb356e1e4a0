import { describe, expect, test } from "vitest";
import { problemIn, pythonRequirement, sortDependencies } from "./dependencies.ts";

const npm = (name: string, version: string) => problemIn("nodejs", { [name]: version });
const pypi = (name: string, version: string) => problemIn("python", { [name]: version });

describe("dependencies of a Node.js function", () => {
  test.each([
    "1.2.3",
    "^4.17",
    "~1.2.3",
    ">=1.0.0 <3",
    ">= 1.0.0",
    "1.0.0 - 2.0.0",
    "1.x || 2.x",
    "*",
    "=1.2.3",
    "v1.2.3",
    "1.0.0-beta.1",
    "1.0.0+build.5",
    "latest",
    "next",
  ])("accepts the npm version %s", (version) => {
    expect(npm("left-pad", version)).toBeUndefined();
  });

  test.each([
    "",
    " ",
    "file:../x",
    "./x",
    "../x",
    "/etc",
    "~/x",
    "x.tgz",
    "1.0.0.tgz",
    "git+https://example.com/x.git",
    "git@example.com:x/y.git",
    "https://example.com/x.tgz",
    "user/repo",
    "github:user/repo",
    "npm:other@1.0.0",
    "workspace:*",
    "link:../x",
    "1.0.0 || file:x",
    "1.0.0\n2.0.0 --x",
    "1 - 2 - 3",
    "$(id)",
    "^1.0.0 #",
    "1".repeat(201),
  ])("refuses the npm version %j", (version) => {
    expect(npm("left-pad", version)).toMatchObject({ name: "left-pad" });
  });

  test.each(["left-pad", "@scope/name", "JSONStream", "a", "lodash.get", "0x"])(
    "accepts the npm name %s",
    (name) => {
      expect(npm(name, "1")).toBeUndefined();
    },
  );

  test.each([
    "",
    ".hidden",
    "_x",
    "../x",
    "a/b",
    "@/x",
    "@a/",
    "@a/b/c",
    "a b",
    "a@1",
    "--save",
    "node_modules",
    "https://x",
    "a".repeat(215),
    "a\n",
  ])("refuses the npm name %j", (name) => {
    expect(npm(name, "1")).toMatchObject({ name });
  });
});

describe("dependencies of a Python function", () => {
  test.each([
    ["2.32.3", "requests==2.32.3"],
    ["==2.32.3", "requests==2.32.3"],
    [">=2, <3", "requests>=2,<3"],
    ["~=2.1", "requests~=2.1"],
    ["==1.*", "requests==1.*"],
    ["1.0rc1", "requests==1.0rc1"],
    ["1.0.post1", "requests==1.0.post1"],
    ["1!2.0+local.1", "requests==1!2.0+local.1"],
    [" 1.0", "requests==1.0"],
    ["1.0+a requests", "requests==1.0+arequests"],
    ["*", "requests"],
    ["latest", "requests"],
  ])("accepts the PyPI version %s", (version, requirement) => {
    expect(pypi("requests", version)).toBeUndefined();
    expect(pythonRequirement("requests", version)).toBe(requirement);
  });

  test.each([
    "",
    "^1.0",
    "===1.0",
    "@ https://example.com/x.whl",
    "@https://example.com/x.whl",
    "==1.0; python_version>'3'",
    "==1.0 --hash=sha256:00",
    "==1.0\n-r /etc/passwd",
    "1.0+a\nrequests",
    "==1.0 \\\n--index-url=https://example.com",
    "1.0,2.0",
    ">=1,file:x",
    "./x",
    "git+https://example.com/x.git",
  ])("refuses the PyPI version %j", (version) => {
    expect(pypi("requests", version)).toMatchObject({ name: "requests" });
  });

  test.each(["requests", "Flask", "ruamel.yaml", "uvicorn[standard]", "a[b,c]"])(
    "accepts the PyPI name %s",
    (name) => {
      expect(pypi(name, "*")).toBeUndefined();
    },
  );

  test.each(["", "-r", "--index-url", "a b", "a;b", "./a", "a[", "a[b]c", "a @ file:///etc", "x\n", "a==1"])(
    "refuses the PyPI name %j",
    (name) => {
      expect(pypi(name, "*")).toMatchObject({ name });
    },
  );

  test("refuses a package under two spellings", () => {
    expect(problemIn("python", { "My.Package": "*", my_package: "1" })).toMatchObject({
      name: "my_package",
    });
    expect(problemIn("python", { uvicorn: "*", "uvicorn[standard]": "*" })).toBeDefined();
  });
});

test("writes equal files for equal dependencies in any order", () => {
  expect(sortDependencies({ b: "1", a: "2" })).toEqual(sortDependencies({ a: "2", b: "1" }));
});
