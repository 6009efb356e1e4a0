import { expect, test } from "vitest";
import { DebianProgress, ENCLOSED, mmdebstrapArgv, parseAptConfig, proxyEnvironment } from "./debian.ts";

const APT_CONFIG = `Acquire "";
Acquire::Check-Valid-Until "false";
Acquire::http "";
Acquire::http::Proxy "http://proxy.example:3142";
Acquire::https::Proxy "DIRECT";
`;

test("makes a slim image from the sources on stdin, without a proxy of the host", () => {
  const step = {
    kind: "debian",
    suite: "bookworm",
    components: ["main"],
    packages: ["git", "curl"],
  } as const;
  const argv = mmdebstrapArgv(
    { ...step, components: ["main"], packages: ["git", "curl"] },
    "/images/x",
    parseAptConfig(APT_CONFIG),
  );
  expect(argv).toEqual([
    ...ENCLOSED,
    "mmdebstrap",
    "--mode=root",
    "--variant=minbase",
    "--format=directory",
    "--verbose",
    '--aptopt=APT::Install-Recommends "false"',
    '--aptopt=Acquire::Languages "none"',
    '--aptopt=Acquire::Check-Valid-Until "false"',
    "--dpkgopt=force-unsafe-io",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-include=/usr/share/doc/*/copyright",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/info/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=path-include=/usr/share/locale/locale.alias",
    "--dpkgopt=path-exclude=/usr/share/lintian/*",
    "--dpkgopt=path-exclude=/usr/share/groff/*",
    "--components=main",
    "--include=git,curl",
    "bookworm",
    "/images/x",
    "-",
  ]);
});

test("passes the host's apt proxy to the build as environment, and treats DIRECT as none", () => {
  expect(proxyEnvironment(parseAptConfig(APT_CONFIG))).toEqual({ http_proxy: "http://proxy.example:3142" });
});

test("reports progress that never decreases, from output that is split at any byte", () => {
  const output = [
    "I: running apt-get update...",
    "Get:1 http://mirror.example/debian bookworm InRelease [151 kB]",
    "I: downloading package files with apt...".replace("package files", "packages"),
    "0 upgraded, 2 newly installed, 0 to remove and 0 not upgraded.",
    "Get:1 http://mirror.example/debian bookworm/main amd64 a amd64 1 [1 kB]",
    "Get:2 http://mirror.example/debian bookworm/main amd64 b amd64 1 [1 kB]",
    "I: extracting archives...",
    "I: installing essential packages...",
    "Setting up a (1) ...",
    "Setting up b (1) ...",
    "Setting up b (1) ...",
    "I: installing remaining packages inside the chroot...",
    "0 upgraded, 1 newly installed, 0 to remove and 0 not upgraded.",
    "Setting up c (1) ...",
    "I: cleaning package lists and apt cache...",
    "",
  ].join("\n");
  const progress = new DebianProgress();
  const seen = Array.from({ length: Math.ceil(output.length / 7) }, (_, index) =>
    progress.read(output.slice(index * 7, index * 7 + 7)),
  );
  const fractions = seen.map(({ fraction }) => fraction);
  expect(fractions).toEqual(fractions.toSorted((a, b) => a - b));
  expect(new Set(seen.map(({ step }) => step))).toContain("installing packages");
  expect(seen.at(-1)).toEqual({ fraction: 0.95, step: "cleaning up" });
});
