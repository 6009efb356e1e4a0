import { expect, test } from "vitest";
import { environmentFile, readDockerfile } from "./dockerfile.ts";

const refusal = (source: string, options = {}): string => {
  try {
    readDockerfile(source, options);
    return "";
  } catch (error) {
    return (error as Error).message;
  }
};

test("writes an instruction as one line without comments, with literal names of bases", () => {
  const { text, bases } = readDockerfile(`# syntax=docker/dockerfile:1
ARG NODE=22
FROM docker.io/library/node:\${NODE}-slim AS Build
RUN apt-get update && \\
    # why
    apt-get install x \\

    && true
COPY --from=redis:7 /a /b
FROM build
COPY --from=0 /a /a
FROM scratch
`);
  expect(text.split("\n")).toEqual([
    "ARG NODE=22",
    "FROM docker.io/library/node:22-slim AS build",
    "RUN apt-get update &&     apt-get install x     && true",
    "COPY --from=redis:7 /a /b",
    "FROM build",
    "COPY --from=0 /a /a",
    "FROM scratch",
    "",
  ]);
  expect(bases).toEqual(["docker.io/library/node:22-slim", "redis:7"]);
});

test.each([
  "FROM dir:/etc",
  "FROM oci-archive:/var/lib/x.tar",
  "FROM containers-storage:localhost/kontor/x",
  "FROM docker-daemon:x:1",
  "FROM ../x",
  "FROM /etc",
  "FROM debian:12\nCOPY --from=dir:/etc shadow /x",
  "FROM debian:12\nCOPY --from=/etc shadow /x",
])("rejects a path of the host as image: %s", (source) => {
  expect(refusal(source)).toContain("is not a valid name of an image");
});

test.each([
  "RUN --mount=type=bind,source=/,target=/m,rw ls",
  "RUN --mount=type=bind,source=link,target=/m ls",
  "RUN --mount=type=bind,from=debian:12,source=/etc,target=/m ls",
  "RUN --mount=type=cache,target=/m,from=debian:12,source=/etc ls",
  "RUN --mount=type=cache,target=/m,id=../../../etc ls",
  "RUN --mount=type=cache,target=/m,source=.. ls",
  "RUN --mount=type=bind,bind-propagation=shared,target=/m ls",
  "RUN --mount=type=ssh ls",
  "RUN --mount=type=cache,target=$HOME ls",
  "RUN --mou\\\nnt=type=bind,source=/etc,target=/m ls",
  "RUN --security=insecure ls",
  "RUN --network=host ls",
  "RUN -v /:/host ls",
  "ONBUILD RUN --mount=type=bind,source=/,target=/m ls",
])("rejects a mount that could leave the build: %s", (line) => {
  expect(refusal(`FROM debian:12-slim\n${line}\n`)).toContain("cannot be built here");
});

test.each([
  "RUN --mount=type=cache,id=d,target=/dev true",
  "RUN --mount=type=tmpfs,target=/proc/acpi true",
  "RUN --mount=type=tmpfs,dst=//sys/./fs/cgroup true",
  "RUN --mount=type=secret,id=x,target=/proc/x true",
  "WORKDIR /a\nWORKDIR /\nRUN --mount=type=cache,target=dev true",
  "VOLUME /dev",
  "VOLUME /d\\ev",
  "ENV A=/\nWORKDIR $A\nRUN --mount=type=cache,target=dev true",
  "VOLUME /data /proc/",
  'VOLUME ["/data", "/a/../sys"]',
])("refuses a mount or volume at /dev, /proc or /sys: %s", (lines) => {
  expect(refusal(`FROM debian:12-slim\n${lines}\n`)).toContain(
    "below /dev, /proc or /sys; choose another path",
  );
});

test.each([
  "WORKDIR /srv\nRUN --mount=type=cache,target=dev true",
  "RUN --mount=type=cache,target=/devices true",
  "VOLUME /data",
  'VOLUME ["/var/lib/sys"]',
])("accepts a mount or volume of a similar name: %s", (lines) => {
  expect(refusal(`FROM debian:12-slim\n${lines}\n`)).toBe("");
});

test("rejects text that only the builder would read as an instruction", () => {
  expect(refusal("FROM debian:12\nHEREDOC <<E\n")).toContain("is not an instruction");
  expect(refusal("# escape=`\nFROM debian:12\n")).toContain("escape");
  expect(refusal("RUN true\n")).toContain("must begin with FROM");
  expect(refusal("")).toContain("no FROM");
  expect(refusal("FROM --platform=linux/arm64 debian:12\n")).toContain("processors");
});

test("refuses a text that costs the server memory or time: a name with many arguments, and many directories", () => {
  const argument = `ARG A=${"a".repeat(30_000)}\n`;
  expect(refusal(`${argument}FROM ${"$A".repeat(15_000)}\n`)).toContain("name of an image has more than");
  expect(refusal(`FROM debian:12\n${"WORKDIR a\n".repeat(6_500)}`)).toContain("WORKDIR has more than");
  expect(refusal(`FROM debian:12\n${"WORKDIR /a\n".repeat(6_500)}`)).toBe("");
});

test("keeps usual mounts unchanged", () => {
  const line = "RUN --mount=type=cache,target=/root/.npm,sharing=locked --mount=type=secret,id=npmrc npm ci";
  expect(readDockerfile(`FROM node:22-slim\n${line}\n`).text).toContain(`${line}\n`);
  const bind = "RUN --mount=type=bind,source=package.json,target=/p cat /p";
  const options = { isPlainPath: (path: string) => path === "package.json" };
  expect(readDockerfile(`FROM node:22-slim\n${bind}\n`, options).text).toContain(bind);
});

test("makes a command read the build's variables from a file, in shell form and in exec form", () => {
  const environment = { file: "/run/e", secrets: { "/run/e": "env" }, stampOf: () => "abc" };
  const { text } = readDockerfile('FROM node:22-slim\nRUN npm ci\nRUN ["npm","run","build"]\n', {
    environment,
  });
  expect(text).toContain(
    "RUN --mount=type=secret,id=env,target=/run/e,mode=0444 : abc; set -a; . /run/e; set +a; npm ci\n",
  );
  expect(text).toContain('exec \\"$@\\"","sh","npm","run","build"]');
  expect(environmentFile({ A: "it's $(x)\nb" })).toBe("A='it'\\''s $(x)\nb'\n");
});
