/**
 * Limits on the shape of a JSON body, checked on its bytes before `JSON.parse`. Parsing, validating, hashing and
 * storing cost far more time per value than per byte. The scan takes about a millisecond per MiB.
 */
import { endOfString } from "#lib/json-depth.ts";

export const maxDepth = 64;
export const maxKeys = 10_000;
export const maxValues = 500_000;

const quote = 0x22;
const comma = 0x2c;
const colon = 0x3a;
const openBracket = 0x5b;
const closeBracket = 0x5d;
const openBrace = 0x7b;
const closeBrace = 0x7d;

/**
 * Describes the first limit that the JSON in `bytes` exceeds, as a continuation of "body". Undefined if it exceeds
 * none. `JSON.parse` reports malformed JSON.
 */
export function exceededLimit(bytes: Uint8Array): string | undefined {
  // Keys seen so far in the object at each depth.
  const keys = new Uint32Array(maxDepth + 1);
  let depth = 0;
  let values = 1;
  for (let at = 0; at < bytes.length; at++) {
    switch (bytes[at]) {
      case quote:
        at = endOfString(bytes, at);
        break;
      case openBracket:
      case openBrace:
        depth += 1;
        if (depth > maxDepth)
          return `is nested deeper than ${maxDepth} levels; send flatter JSON, or the inner part as a string`;
        keys[depth] = 0;
        values += 1;
        break;
      case closeBracket:
      case closeBrace:
        if (depth > 0) depth -= 1;
        break;
      case colon:
        keys[depth]! += 1;
        if (keys[depth]! > maxKeys)
          return `has an object with more than ${maxKeys} keys; send a list, or several requests`;
        break;
      case comma:
        values += 1;
        break;
      default:
    }
    if (values > maxValues) return `holds more than ${maxValues} values; send several smaller requests`;
  }
  return undefined;
}
