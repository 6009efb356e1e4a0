/**
 * A machine trusts whom its host trusts: behind a network that inspects TLS every program inside would fail otherwise,
 * npm with a misleading message after 71 seconds. What the host's bundle has and the image's has not is put where
 * update-ca-certificates finds it, so that it survives updates inside.
 */
import { createHash } from "node:crypto";
import { mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import path from "node:path";

export const BUNDLE = "/etc/ssl/certs/ca-certificates.crt";
const LOCAL = "/usr/local/share/ca-certificates";

/** Node, Python's requests and pip, and whatever uses OpenSSL read these; each has a list of its own otherwise. */
export const TRUST_ENVIRONMENT: Readonly<Record<string, string>> = {
  NODE_EXTRA_CA_CERTS: BUNDLE,
  REQUESTS_CA_BUNDLE: BUNDLE,
  SSL_CERT_FILE: BUNDLE,
};

/** For npm on this host, which has a list of its own as well, unless the host's owner named another. */
export function npmEnvironment(): NodeJS.ProcessEnv {
  return { NODE_EXTRA_CA_CERTS: BUNDLE, ...process.env };
}

/** The certificates of a PEM text, each once, as they are. */
export function certificates(pem: string): string[] {
  const blocks = pem.match(/-----BEGIN CERTIFICATE-----[\s\S]*?-----END CERTIFICATE-----/g) ?? [];
  return [...new Set(blocks.map((block) => block.replaceAll("\r", "")))];
}

/** Puts the host's certificates into the image. `refresh` runs update-ca-certificates inside; absent where it is. */
export async function trustHost(
  rootfs: string,
  refresh: (argv: string[]) => Promise<unknown>,
): Promise<void> {
  const host = await hostCertificates();
  const bundle = path.join(rootfs, BUNDLE);
  const known = new Set(certificates(await readFile(bundle, "utf8").catch(() => "")));
  const missing = host.filter((certificate) => !known.has(certificate));
  await mkdir(path.join(rootfs, LOCAL), { recursive: true });
  for (const certificate of missing) {
    const name = `host-${createHash("sha256").update(certificate).digest("hex").slice(0, 16)}.crt`;
    await writeFile(path.join(rootfs, LOCAL, name), `${certificate}\n`, { mode: 0o644 });
  }
  const updater = "/usr/sbin/update-ca-certificates";
  const hasUpdater = await readFile(path.join(rootfs, updater)).then(
    () => true,
    () => false,
  );
  if (hasUpdater) {
    await refresh([updater]);
    return;
  }
  await mkdir(path.dirname(bundle), { recursive: true });
  await writeFile(bundle, [...known, ...missing].map((certificate) => `${certificate}\n`).join(""), {
    mode: 0o644,
  });
}

async function hostCertificates(): Promise<string[]> {
  const local = await readdir(LOCAL, { recursive: true }).catch(() => []);
  const files = [
    BUNDLE,
    ...local.filter((name) => name.endsWith(".crt")).map((name) => path.join(LOCAL, name)),
  ];
  const texts = await Promise.all(files.map((file) => readFile(file, "utf8").catch(() => "")));
  return certificates(texts.join("\n"));
}
