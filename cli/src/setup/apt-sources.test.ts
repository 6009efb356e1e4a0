import { expect, test } from "vitest";
import { backportsSources, parseDeb822, parseOneLine } from "./apt-sources.ts";

const deb822 = `# the archive
Types: deb
# a comment between fields
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main
`;

test("deb822 sources are read with their comments, and a disabled one is not there", () => {
  expect(parseDeb822(deb822)).toEqual([
    {
      uris: ["http://mirror.example/debian"],
      suites: ["bookworm", "bookworm-updates"],
      components: ["main", "contrib"],
      signedBy: "/usr/share/keyrings/debian-archive-keyring.gpg",
    },
    {
      uris: ["http://mirror.example/debian-security"],
      suites: ["bookworm-security"],
      components: ["main"],
      signedBy: undefined,
    },
  ]);
});

test("an embedded signing key is kept line by line", () => {
  const [source] = parseDeb822(
    "Types: deb\nURIs: http://m.example\nSuites: s\nComponents: main\nSigned-By:\n -----BEGIN\n .\n -----END\n",
  );
  expect(source?.signedBy).toBe("\n -----BEGIN\n .\n -----END");
});

test("one-line sources are read with and without options; deb-src and comments are not", () => {
  const text = `# deb http://no.example/debian bookworm main
deb-src http://src.example/debian bookworm main
deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/debian bookworm main contrib # ours
deb http://mirror.example/debian bookworm-updates main`;
  expect(parseOneLine(text)).toEqual([
    {
      uris: ["http://mirror.example/debian"],
      suites: ["bookworm"],
      components: ["main", "contrib"],
      signedBy: "/k.gpg",
    },
    {
      uris: ["http://mirror.example/debian"],
      suites: ["bookworm-updates"],
      components: ["main"],
      signedBy: undefined,
    },
  ]);
});

test("backports are asked for where the host gets its own suite, with the same key", () => {
  const text = backportsSources(parseDeb822(deb822), "bookworm");
  expect(parseDeb822(text ?? "")).toEqual([
    {
      uris: ["http://mirror.example/debian"],
      suites: ["bookworm-backports"],
      components: ["main"],
      signedBy: "/usr/share/keyrings/debian-archive-keyring.gpg",
    },
  ]);
});

test("a host without a source for its own suite gets no invented one", () => {
  expect(backportsSources(parseDeb822(deb822), "trixie")).toBeUndefined();
});
