/**
 * A machine trusts the certificates of its host. Otherwise every program inside would fail behind a network
 * that inspects TLS, npm with a misleading message after 71 seconds. Certificates of the host's bundle that
 * the image lacks are stored for update-ca-certificates, so that they survive updates inside.
 */
import { createHash } from "node:crypto";
import { mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import path from "node:path";

export const BUNDLE = "/etc/ssl/certs/ca-certificates.crt";
const LOCAL = "/usr/local/share/ca-certificates";

/**
 * Variables that make programs trust the host's certificates: Node, Python's requests and pip, and programs with
 * OpenSSL. Otherwise each uses its own list.
 */
export const TRUST_ENVIRONMENT: Readonly<Record<string, string>> = {
  NODE_EXTRA_CA_CERTS: BUNDLE,
  REQUESTS_CA_BUNDLE: BUNDLE,
  SSL_CERT_FILE: BUNDLE,
};

/** Makes npm on this host trust the host's certificates, unless the host's owner set another file. */
export function npmEnvironment(): NodeJS.ProcessEnv {
  return { NODE_EXTRA_CA_CERTS: BUNDLE, ...process.env };
}

/** Returns the certificates of a PEM text, each once, unchanged. */
export function certificates(pem: string): string[] {
  const blocks = pem.match(/-----BEGIN CERTIFICATE-----[\s\S]*?-----END CERTIFICATE-----/g) ?? [];
  return [...new Set(blocks.map((block) => block.replaceAll("\r", "")))];
}

/**
 * Adds the host's certificates to the image. `refresh` runs update-ca-certificates inside, if the image has
 * it.
 */
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
