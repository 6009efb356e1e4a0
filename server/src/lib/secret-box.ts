/**
 * Encrypts secrets at rest: AES-256-GCM with a random 96-bit nonce for each seal (NIST SP 800-38D: up to 2^32 seals per
 * key). The `aad` names the storage place of a secret (`table:row:column`), so that a sealed value copied to another
 * row does not open there.
 *
 * Layout: version (1 byte) | key id (4) | nonce (12) | tag (16) | ciphertext. The key id makes "wrong key" an error of
 * its own, and allows key rotation later.
 */
import {
  createCipheriv,
  createDecipheriv,
  createHash,
  createHmac,
  hkdfSync,
  randomBytes,
  timingSafeEqual,
} from "node:crypto";

const version = 1;
const signatureVersion = 2;
const headerBytes = 5;
const nonceBytes = 12;
const tagBytes = 16;
export const keyBytes = 32;

/** A sealed value does not open: another key, another place, or changed bytes. */
export class SealedValueError extends Error {
  override readonly name = "SealedValueError";
}

export class SecretBox {
  readonly #key: Buffer;
  readonly #header: Buffer;

  /** `key` is 32 random bytes. */
  constructor(key: Buffer) {
    if (key.length !== keyBytes)
      throw new RangeError(`a secrets key has ${keyBytes} bytes, not ${key.length}`);
    this.#key = key;
    this.#header = Buffer.from([version, ...createHash("sha256").update(key).digest().subarray(0, 4)]);
  }

  seal(plain: string | Buffer, aad: string): Buffer {
    const nonce = randomBytes(nonceBytes);
    const cipher = createCipheriv("aes-256-gcm", this.#key, nonce).setAAD(this.#aad(aad));
    const body = Buffer.concat([
      typeof plain === "string" ? cipher.update(plain, "utf8") : cipher.update(plain),
      cipher.final(),
    ]);
    return Buffer.concat([this.#header, nonce, cipher.getAuthTag(), body]);
  }

  /** Returns the plain bytes. Throws `SealedValueError`. */
  open(sealed: Buffer, aad: string): Buffer {
    if (sealed.length < headerBytes + nonceBytes + tagBytes)
      throw new SealedValueError("the sealed value is truncated");
    if (!sealed.subarray(0, headerBytes).equals(this.#header)) {
      throw new SealedValueError("the value was sealed with another key");
    }
    const nonce = sealed.subarray(headerBytes, headerBytes + nonceBytes);
    const tag = sealed.subarray(headerBytes + nonceBytes, headerBytes + nonceBytes + tagBytes);
    const decipher = createDecipheriv("aes-256-gcm", this.#key, nonce).setAAD(this.#aad(aad)).setAuthTag(tag);
    try {
      return Buffer.concat([
        decipher.update(sealed.subarray(headerBytes + nonceBytes + tagBytes)),
        decipher.final(),
      ]);
    } catch (cause) {
      throw new SealedValueError("the sealed value was changed, or belongs to another place", { cause });
    }
  }

  /**
   * Returns 32 bytes for one purpose alone (HKDF, RFC 5869). These bytes reveal nothing about the key or other
   * purposes.
   */
  derive(purpose: string): Buffer {
    return Buffer.from(hkdfSync("sha256", this.#key, "", `kontor:${purpose}`, keyBytes));
  }

  /**
   * Returns an HMAC-SHA256 (base64url) over the JSON array `[version, ...fields]`, with a key for this purpose alone.
   * JSON quotes every separator that a field may hold, so two different lists of fields never sign the same bytes.
   */
  sign(purpose: string, fields: readonly (string | number)[]): string {
    const message = JSON.stringify([signatureVersion, ...fields]);
    return createHmac("sha256", this.derive(purpose)).update(message).digest("base64url");
  }

  /** Compares in constant time. */
  verify(purpose: string, fields: readonly (string | number)[], signature: string): boolean {
    const [expected, given] = [Buffer.from(this.sign(purpose, fields)), Buffer.from(signature)];
    return given.length === expected.length && timingSafeEqual(given, expected);
  }

  #aad(place: string): Buffer {
    return Buffer.concat([this.#header, Buffer.from(place, "utf8")]);
  }
}
