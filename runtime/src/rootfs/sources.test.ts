import { expect, test } from "vitest";
import { parseDeb822, parseOneLine, pickMirrors, sourcesList } from "./sources.ts";

const DEB822 = `# a comment
Types: deb deb-src
# http://snapshot.example/debian
URIs: http://mirror.example/debian/
Suites: bookworm bookworm-updates
Components: main
 contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
Enabled: no
URIs: http://off.example/debian
Suites: bookworm
Components: main
`;

const ONE_LINE = `deb-src http://mirror.example/debian bookworm main
#deb http://off.example/debian bookworm main
deb http://mirror.example/debian bookworm main contrib # trailing
deb [ arch=amd64 signed-by=/etc/apt/keyrings/vendor.gpg ] https://vendor.example/linux bookworm main
deb [trusted=yes] cdrom:[Debian]/ bookworm main
deb http://security.example/debian-security bookworm-security main
`;

test("reads both styles of apt sources, without disabled sources", () => {
  expect(parseDeb822(DEB822)).toEqual([
    {
      uris: ["http://mirror.example/debian/"],
      suites: ["bookworm", "bookworm-updates"],
      components: ["main", "contrib"],
      signedBy: "/usr/share/keyrings/debian-archive-keyring.gpg",
    },
    {
      uris: ["http://mirror.example/debian-security"],
      suites: ["bookworm-security"],
      components: ["main"],
      signedBy: "/usr/share/keyrings/debian-archive-keyring.gpg",
    },
  ]);
  expect(parseOneLine(ONE_LINE).map(({ uris, suites, signedBy }) => [uris[0], suites[0], signedBy])).toEqual([
    ["http://mirror.example/debian", "bookworm", null],
    ["https://vendor.example/linux", "bookworm", "/etc/apt/keyrings/vendor.gpg"],
    ["cdrom:[Debian]/", "bookworm", null],
    ["http://security.example/debian-security", "bookworm-security", null],
  ]);
});

test("chooses Debian's own archive as mirror, never a vendor's with the same suite", () => {
  expect(pickMirrors(parseDeb822(DEB822))).toEqual({
    main: "http://mirror.example/debian",
    security: "http://mirror.example/debian-security",
  });
  expect(pickMirrors(parseOneLine(ONE_LINE))).toEqual({
    main: "http://mirror.example/debian",
    security: "http://security.example/debian-security",
  });
});

test("reports the missing source on a host without a Debian mirror", () => {
  const vendor = "deb [signed-by=/etc/apt/keyrings/vendor.gpg] https://vendor.example/linux bookworm main\n";
  expect(() => pickMirrors(parseOneLine(vendor))).toThrow("add Debian's main archive");
});

test("adapts the host's mirrors to another suite, with updates and security", () => {
  const mirrors = pickMirrors(parseDeb822(DEB822));
  const signed = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]";
  expect(sourcesList(mirrors, "trixie", ["main"]))
    .toBe(`deb ${signed} http://mirror.example/debian trixie main
deb ${signed} http://mirror.example/debian trixie-updates main
deb ${signed} http://mirror.example/debian-security trixie-security main
`);
  expect(sourcesList({ ...mirrors, security: null }, "trixie", ["main"])).not.toContain("security");
});
