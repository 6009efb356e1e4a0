/**
 * What an agent is told of a delivery: a text with places, `{{body.issue.title}}`. A place is a path into what was
 * delivered and nothing else: nothing is computed, and what came is never read as a template itself.
 */

const roots = ["body", "headers", "query", "webhook", "received_at"] as const;
export type Root = (typeof roots)[number];
export type Delivered = Record<Root, unknown>;

const place = /\{\{(.*?)\}\}/gs;
/** Braces alone are text. */
const openPlace = new RegExp(`\\{\\{\\s*(?:${roots.join("|")})\\b[\\w.-]{0,80}`);

/** Why a template does not do; undefined where it does. */
export function whyNotTemplate(template: string): string | undefined {
  for (const [whole, inside = ""] of template.matchAll(place)) {
    if (!pathOf(inside))
      return `${whole.slice(0, 80)} is no place: a path begins with ${roots.join(", ")}, as in {{body.issue.title}}`;
  }
  const [open] = openPlace.exec(template.replaceAll(place, "")) ?? [];
  return open && `${open} is not closed: write }} after the path, as in {{body.issue.title}}`;
}

export interface FillLimits {
  maxBytes: number;
  /** Shown in no place, nor put together by several; "…" stands there. */
  secret: string;
}

/**
 * Strings as they are, all else as compact JSON, what is not there as nothing. Undefined where it would be more than
 * `maxBytes` of UTF-8: a template that repeats a large body is given up at the first one that does not fit.
 */
export function fill(
  template: string,
  delivered: Delivered,
  { maxBytes, secret }: FillLimits,
): string | undefined {
  const hide = (text: string) => text.replaceAll(secret, "…");
  const pieces: string[] = [];
  let bytes = 0;
  // Text and the insides of places by turns.
  for (const [index, part] of template.split(place).entries()) {
    const piece = hide(index % 2 === 0 ? part : textOf(lookUp(delivered, pathOf(part) ?? [])));
    bytes += Buffer.byteLength(piece);
    if (bytes > maxBytes) return undefined;
    pieces.push(piece);
  }
  return hide(pieces.join(""));
}

/** False if the value of any placeholder is missing, null or empty. Only a complete template yields a key. */
export function isComplete(template: string, delivered: Delivered): boolean {
  return [...template.matchAll(place)].every(([, inside = ""]) => {
    const value = lookUp(delivered, pathOf(inside) ?? []);
    return value !== undefined && value !== null && textOf(value).trim() !== "";
  });
}

/** False for a text without placeholders. */
export function hasPlaces(template: string): boolean {
  return template.search(place) >= 0;
}

function textOf(value: unknown): string {
  return typeof value === "string" ? value : (JSON.stringify(value) ?? "");
}

function pathOf(inside: string): string[] | undefined {
  const path = inside.trim().split(".");
  const isPath = path.every((part) => /^[^\s{}]+$/.test(part));
  return isPath && (roots as readonly string[]).includes(path[0]!) ? path : undefined;
}

/** Own fields alone: what every object has from its maker was not delivered. */
function lookUp(delivered: Delivered, path: readonly string[]): unknown {
  let found: unknown = delivered;
  for (const [depth, part] of path.entries()) {
    // Names of headers have no case.
    const name = depth === 1 && path[0] === "headers" ? part.toLowerCase() : part;
    if (typeof found !== "object" || found === null || !Object.hasOwn(found, name)) return undefined;
    found = (found as Record<string, unknown>)[name];
  }
  return found;
}
