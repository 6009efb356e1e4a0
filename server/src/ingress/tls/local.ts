/**
 * Certificates of a local authority, for hosts that no public authority can reach. The first start creates the
 * authority, and people trust it manually. Leaf certificates are created on demand and kept in memory only.
 *
 * A person who trusts the authority also trusts anyone with its key. So the authority is limited to the names of this
 * installation (RFC 5280 §4.2.1.10): a stolen key certifies no other name.
 */
import { randomBytes, webcrypto } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { createSecureContext, type SecureContext } from "node:tls";
import {
  AuthorityKeyIdentifierExtension,
  BasicConstraintsExtension,
  Extension,
  ExtendedKeyUsage,
  ExtendedKeyUsageExtension,
  KeyUsageFlags,
  KeyUsagesExtension,
  PemConverter,
  SubjectAlternativeNameExtension,
  SubjectKeyIdentifierExtension,
  X509Certificate,
  X509CertificateGenerator,
} from "@peculiar/x509";
import { writeFileWhole } from "#lib/state-file.ts";
import type { Certificates } from "./certificates.ts";
import { nameConstraints, nameConstraintsId } from "./name-constraints.ts";

const ecdsa = { name: "ECDSA", namedCurve: "P-256", hash: "SHA-256" };
const dayMs = 24 * 3_600_000;
const authorityDays = 3650;
/**
 * Lifetime of a leaf certificate, in days. Certificates are kept in memory, so each start creates new ones. Some
 * systems refuse lifetimes above 825 days.
 */
const leafDays = 90;
const renewedDaysBefore = 30;
/** Time by which a certificate is valid before its creation, for clients whose clock is behind. */
const backdatedMs = dayMs;

export interface LocalNames {
  /** Domains that the authority may certify, with all names below them. */
  domains: readonly string[];
  /** Names with a shared wildcard certificate: `*.sbx.localhost`. */
  wildcards: readonly string[];
}

interface Authority {
  certificate: X509Certificate;
  key: webcrypto.CryptoKey;
}

interface Leaf {
  key: string;
  cert: string;
  context: SecureContext;
  renewAt: number;
}

export class LocalCertificates implements Certificates {
  readonly isPublic = false;
  readonly #authority: Authority;
  readonly #names: LocalNames;
  readonly #leaves = new Map<string, Promise<Leaf>>();

  private constructor(authority: Authority, names: LocalNames) {
    this.#authority = authority;
    this.#names = names;
  }

  /** Reuses the authority in `directory` (`ca.crt`, `ca.key`) as long as it is valid for exactly these names. */
  static async open(directory: string, names: LocalNames): Promise<LocalCertificates> {
    const files = { cert: caFile(directory), key: join(directory, "ca.key") };
    const known = await readAuthority(files, names.domains);
    if (known) return new LocalCertificates(known, names);
    const made = await makeAuthority(names.domains);
    const key = await webcrypto.subtle.exportKey("pkcs8", made.key);
    writeFileWhole(files.key, `${PemConverter.encode(key, "PRIVATE KEY")}\n`, 0o600);
    writeFileWhole(files.cert, `${made.certificate.toString("pem")}\n`, 0o644);
    return new LocalCertificates(made, names);
  }

  async contextFor(name: string): Promise<SecureContext> {
    return (await this.#leafFor(name)).context;
  }

  defaultCertificate(): Promise<{ key: string; cert: string }> {
    return this.#leafFor("localhost");
  }

  async #leafFor(name: string): Promise<Leaf> {
    const { wildcards, domains } = this.#names;
    const wildcard = wildcards.find((one) => one === `*${name.slice(name.indexOf("."))}`);
    // Clients would not trust a certificate for a foreign name.
    const subject = wildcard ?? (domains.includes(name) ? name : "localhost");
    const known = this.#leaves.get(subject);
    if (known !== undefined && (await known).renewAt > Date.now()) return known;
    const made = makeLeaf(this.#authority, subject);
    this.#leaves.set(subject, made);
    return made;
  }
}

export function caFile(directory: string): string {
  return join(directory, "ca.crt");
}

async function makeAuthority(domains: readonly string[]): Promise<Authority> {
  const keys = await webcrypto.subtle.generateKey(ecdsa, true, ["sign", "verify"]);
  const certificate = await X509CertificateGenerator.createSelfSigned({
    serialNumber: serialNumber(),
    // The random number distinguishes two installations on one machine.
    name: `CN=Kontor local authority ${randomBytes(3).toString("hex")}`,
    ...validity(authorityDays),
    keys,
    signingAlgorithm: ecdsa,
    extensions: [
      new BasicConstraintsExtension(true, 0, true),
      new KeyUsagesExtension(KeyUsageFlags.keyCertSign | KeyUsageFlags.cRLSign, true),
      await SubjectKeyIdentifierExtension.create(keys.publicKey),
      new Extension(nameConstraintsId, true, nameConstraints(domains)),
    ],
  });
  return { certificate, key: keys.privateKey };
}

/**
 * Reads the authority from disk. Undefined if there is no authority, its key does not match, its names differ, or it
 * expires soon.
 */
async function readAuthority(
  files: { cert: string; key: string },
  domains: readonly string[],
): Promise<Authority | undefined> {
  try {
    const certificate = new X509Certificate(readFileSync(files.cert, "utf8"));
    const [der] = PemConverter.decode(readFileSync(files.key, "utf8"));
    const key = await webcrypto.subtle.importKey("pkcs8", der!, ecdsa, true, ["sign"]);
    const constraints = certificate.getExtension(nameConstraintsId)?.value ?? new ArrayBuffer();
    const isOurs = Buffer.from(constraints).equals(nameConstraints(domains));
    const livesOn = certificate.notAfter.getTime() > Date.now() + leafDays * dayMs;
    return isOurs && livesOn && (await isKeyOf(certificate, key)) ? { certificate, key } : undefined;
  } catch {
    return undefined;
  }
}

/** A crash between the two files can leave a key and a certificate that do not match. */
async function isKeyOf(certificate: X509Certificate, key: webcrypto.CryptoKey): Promise<boolean> {
  const text = Buffer.from("proof of possession");
  const signature = await webcrypto.subtle.sign(ecdsa, key, text);
  const publicKey = await certificate.publicKey.export(ecdsa, ["verify"]);
  return webcrypto.subtle.verify(ecdsa, publicKey, signature, text);
}

async function makeLeaf(authority: Authority, subject: string): Promise<Leaf> {
  const keys = await webcrypto.subtle.generateKey(ecdsa, true, ["sign", "verify"]);
  const addresses = subject === "localhost" ? ["127.0.0.1", "::1"] : [];
  const certificate = await X509CertificateGenerator.create({
    serialNumber: serialNumber(),
    subject: `CN=${subject}`,
    issuer: authority.certificate.subject,
    ...validity(leafDays),
    publicKey: keys.publicKey,
    signingKey: authority.key,
    signingAlgorithm: ecdsa,
    extensions: [
      new BasicConstraintsExtension(false, undefined, true),
      new KeyUsagesExtension(KeyUsageFlags.digitalSignature, true),
      new ExtendedKeyUsageExtension([ExtendedKeyUsage.serverAuth]),
      new SubjectAlternativeNameExtension([
        { type: "dns", value: subject },
        ...addresses.map((value) => ({ type: "ip" as const, value })),
      ]),
      await AuthorityKeyIdentifierExtension.create(authority.certificate.publicKey),
    ],
  });
  const key = PemConverter.encode(await webcrypto.subtle.exportKey("pkcs8", keys.privateKey), "PRIVATE KEY");
  const cert = certificate.toString("pem");
  const renewAt = certificate.notAfter.getTime() - renewedDaysBefore * dayMs;
  return { key, cert, context: createSecureContext({ key, cert }), renewAt };
}

function validity(days: number): { notBefore: Date; notAfter: Date } {
  const now = Date.now();
  return { notBefore: new Date(now - backdatedMs), notAfter: new Date(now + days * dayMs) };
}

/** Returns a random serial number: positive, with at most 20 bytes (RFC 5280 §4.1.2.2). */
function serialNumber(): string {
  return `01${randomBytes(15).toString("hex")}`;
}
