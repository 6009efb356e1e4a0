/**
 * Makes a project's deploy key for its ssh repository: ed25519, in OpenSSH's own format (PROTOCOL.key of OpenSSH; RFC
 * 8709 for the public key). Node generates the key, but writes only PKCS #8, which ssh of Debian 12 does not read for
 * ed25519.
 */
import { generateKeyPair, randomBytes } from "node:crypto";
import { promisify } from "node:util";

const keyType = "ssh-ed25519";
const comment = "kontor";

/** Returns a key pair. `publicKey` is a line for the forge. `privateKey` is the text of an unencrypted key file. */
export async function makeDeployKey(): Promise<{ publicKey: string; privateKey: string }> {
  const pair = await promisify(generateKeyPair)("ed25519");
  const jwk = pair.privateKey.export({ format: "jwk" });
  const [secret, open] = [jwk.d, jwk.x].map((part) => Buffer.from(part ?? "", "base64url")) as [
    Buffer,
    Buffer,
  ];
  const blob = strings(keyType, open);
  // The format contains this number twice, so that a reader can check its decryption.
  const check = randomBytes(4);
  const inner = Buffer.concat([check, check, blob, strings(Buffer.concat([secret, open]), comment)]);
  const padding = Buffer.from(Array.from({ length: (8 - (inner.length % 8)) % 8 }, (_, n) => n + 1));
  const file = Buffer.concat([
    Buffer.from("openssh-key-v1\0"),
    strings("none", "none", ""),
    uint32(1),
    strings(blob, Buffer.concat([inner, padding])),
  ]);
  const lines = file.toString("base64").match(/.{1,70}/g) ?? [];
  return {
    publicKey: `${keyType} ${blob.toString("base64")} ${comment}`,
    privateKey: [
      "-----BEGIN OPENSSH PRIVATE KEY-----",
      ...lines,
      "-----END OPENSSH PRIVATE KEY-----",
      "",
    ].join("\n"),
  };
}

/** Returns strings in the form of RFC 4251, section 5: each after its length. */
function strings(...parts: (string | Buffer)[]): Buffer {
  return Buffer.concat(
    parts.flatMap((part) => {
      const bytes = Buffer.from(part as string);
      return [uint32(bytes.length), bytes];
    }),
  );
}

function uint32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value);
  return bytes;
}
