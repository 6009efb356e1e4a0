import { expect, test } from "vitest";
import { apiHostOf, atDigest, parseReference, parseRegistry } from "./reference.ts";

const digest = `sha256:${"a".repeat(64)}`;

test.each([
  ["nginx", "docker.io/library/nginx:latest", "latest"],
  ["nginx:1.29", "docker.io/library/nginx:1.29", "1.29"],
  ["team/app", "docker.io/team/app:latest", "latest"],
  ["index.docker.io/team/app:2", "docker.io/team/app:2", "2"],
  ["GHCR.io/team/app:V2", "ghcr.io/team/app:V2", "V2"],
  ["localhost/app", "localhost/app:latest", "latest"],
  ["10.0.0.5:5000/a/b/c:x", "10.0.0.5:5000/a/b/c:x", "x"],
  [`ghcr.io/team/app@${digest}`, `ghcr.io/team/app@${digest}`, digest],
  [`ghcr.io/team/app:1@${digest}`, `ghcr.io/team/app:1@${digest}`, digest],
])("parses %s like docker pull", (text, whole, version) => {
  expect(parseReference(text)).toMatchObject({ text: whole, version });
  expect(parseReference(whole)).toEqual(parseReference(text));
});

test.each([
  "",
  "Nginx",
  "ghcr.io/",
  "ghcr.io/Team/app",
  "ghcr.io/team/../app",
  "ghcr.io/team//app",
  "ghcr.io:99999/team/app",
  "ghcr.io:0/team/app",
  "user:password@ghcr.io/team/app",
  "https://ghcr.io/team/app",
  "docker://ghcr.io/team/app",
  "ghcr.io/team/app:",
  "ghcr.io/team/app:-1",
  "ghcr.io/team/app@sha256:12",
  "ghcr.io/team/app?x=1",
  "ghcr.io/team/app#x",
  "[::1]:5000/team/app",
  "-host.example/team/app",
  `ghcr.io/${"a/".repeat(300)}b`,
])("refuses the reference %j", (text) => {
  expect(parseReference(text)).toBe(undefined);
});

test("returns the API host of Docker Hub, and formats a repository with a digest", () => {
  const nginx = parseReference("nginx")!;
  expect(apiHostOf(nginx)).toBe("registry-1.docker.io");
  expect(atDigest(nginx, digest).text).toBe(`docker.io/library/nginx@${digest}`);
  expect(parseRegistry("registry-1.docker.io")).toBe("docker.io");
});
