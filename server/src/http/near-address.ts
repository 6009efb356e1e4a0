/** Suggests the existing address that is nearest to an unknown one. */
import { nearest } from "../lib/nearest.ts";

const prefixes = ["", "/v1", "/api/v1"];
const maxPathLength = 256;

/**
 * Returns the address that is nearest to an unknown path. `paths` are templates such as `/v1/sandboxes/{sandbox_id}`.
 * Undefined when more than one segment differs.
 */
export function nearAddress(path: string, paths: readonly string[]): string | undefined {
  if (path.length > maxPathLength) return undefined;
  const candidates = prefixes.flatMap((prefix) => {
    const segments = `${prefix}${path}`.split("/");
    return paths.flatMap((known) => correctPath(segments, known.split("/")) ?? []);
  });
  return candidates.toSorted((a, b) => a.changes - b.changes)[0]?.address;
}

function correctPath(
  segments: readonly string[],
  known: readonly string[],
): { address: string; changes: number } | undefined {
  if (segments.length !== known.length) return undefined;
  let changes = 0;
  const address = [...segments];
  for (const [index, name] of known.entries()) {
    const segment = segments[index]!;
    if (name.startsWith("{") ? segment !== "" : segment === name) continue;
    changes += 1;
    if (changes > 1 || !isNear(segment, name)) return undefined;
    address[index] = name;
  }
  return { address: address.join("/"), changes };
}

/** True for a singular and its plural, however short: `app` is near `apps`, `sandbox` near `sandboxes`. */
function isNear(segment: string, name: string): boolean {
  if (segment === "" || name.startsWith("{")) return false;
  return name === `${segment}s` || name === `${segment}es` || nearest(segment, [name]) !== undefined;
}
