/** Name constraints of an authority in DER (RFC 5280 §4.2.1.10), which the certificate library does not support. */

export const nameConstraintsId = "2.5.29.30";

/** Returns constraints that permit these names and all names below them. The only permitted addresses are loopback. */
export function nameConstraints(domains: readonly string[]): Buffer {
  const names = domains.map((domain) => der(0x82, Buffer.from(domain, "latin1")));
  // A loopback address, followed by its mask.
  const v4 = der(0x87, Buffer.from("7f000001ffffffff", "hex"));
  const v6 = der(0x87, Buffer.concat([Buffer.alloc(15), Buffer.from([1]), Buffer.alloc(16, 0xff)]));
  const subtrees = [...names, v4, v6].map((base) => der(0x30, base));
  return der(0x30, der(0xa0, ...subtrees));
}

function der(tag: number, ...parts: Buffer[]): Buffer {
  const body = Buffer.concat(parts);
  const { length } = body;
  const long = Buffer.from(length > 0xff ? [0x82, length >> 8, length & 0xff] : [0x81, length]);
  return Buffer.concat([Buffer.from([tag]), length < 0x80 ? Buffer.from([length]) : long, body]);
}
