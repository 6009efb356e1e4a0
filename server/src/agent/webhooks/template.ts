/**
 * Renders the message for an agent from a template with placeholders such as `{{body.issue.title}}`. A placeholder is a
 * path into the delivery. Templates compute nothing, and a placeholder in the delivery is not expanded.
 */

const roots = ["body", "headers", "query", "webhook", "received_at"] as const;
type Root = (typeof roots)[number];
export type TemplateInput = Record<Root, unknown>;

const place = /\{\{(.*?)\}\}/gs;
/** Matches the beginning of a placeholder. Braces without a root name are plain text. */
const openPlace = new RegExp(`\\{\\{\\s*(?:${roots.join("|")})\\b[\\w.-]{0,80}`);

/** Returns the fault of a template, or undefined for a valid one. */
export function findTemplateFault(template: string): string | undefined {
  for (const [whole, inside = ""] of template.matchAll(place)) {
    if (!pathOf(inside))
      return (
        `${whole.slice(0, 80)} is not a placeholder: a path begins with ${roots.join(", ")}, as in ` +
        "{{body.issue.title}}"
      );
  }
  const [open] = openPlace.exec(template.replaceAll(place, "")) ?? [];
  return open && `${open} is not closed: write }} after the path, as in {{body.issue.title}}`;
}

export interface FillLimits {
  maxBytes: number;
  /** Secret that "…" replaces in the result, even if several placeholders compose the secret. */
  secret: string;
}

/**
 * Renders a template. Inserts strings as they are, other values as compact JSON, and nothing for missing values.
 * Returns undefined if the result exceeds `maxBytes` of UTF-8. Rendering stops at this limit, because a template may
 * repeat a large body.
 */
export function renderTemplate(
  template: string,
  delivered: TemplateInput,
  { maxBytes, secret }: FillLimits,
): string | undefined {
  const hide = (text: string) => text.replaceAll(secret, "…");
  const pieces: string[] = [];
  let bytes = 0;
  // In the split template, text and placeholders alternate.
  for (const [index, part] of template.split(place).entries()) {
    const piece = hide(index % 2 === 0 ? part : textOf(lookUp(delivered, pathOf(part) ?? [])));
    bytes += Buffer.byteLength(piece);
    if (bytes > maxBytes) return undefined;
    pieces.push(piece);
  }
  return hide(pieces.join(""));
}

/**
 * Returns false if the value of any placeholder is missing, null or empty. Only a complete template yields a session
 * key.
 */
export function isComplete(template: string, delivered: TemplateInput): boolean {
  return [...template.matchAll(place)].every(([, inside = ""]) => {
    const value = lookUp(delivered, pathOf(inside) ?? []);
    return value !== undefined && value !== null && textOf(value).trim() !== "";
  });
}

/** Returns true if a template has placeholders. */
export function hasPlaceholders(template: string): boolean {
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

/**
 * Returns the value at a path. Reads own properties only, because inherited properties are not part of the delivery.
 */
function lookUp(delivered: TemplateInput, path: readonly string[]): unknown {
  let found: unknown = delivered;
  for (const [depth, part] of path.entries()) {
    // Header names are case-insensitive.
    const name = depth === 1 && path[0] === "headers" ? part.toLowerCase() : part;
    if (typeof found !== "object" || found === null || !Object.hasOwn(found, name)) return undefined;
    found = (found as Record<string, unknown>)[name];
  }
  return found;
}
