/**
 * What an agent is told of a delivery: a text with places, `{{body.issue.title}}`. A place is a path into what was
 * delivered and nothing else: nothing is computed, and what came is never read as a template itself.
 */

const roots = ["body", "headers", "query", "webhook", "received_at"] as const;
export type Root = (typeof roots)[number];
export type Delivered = Record<Root, unknown>;

const place = /\{\{(.*?)\}\}/gs;

/** Why a template does not do; undefined where it does. */
export function whyNotTemplate(template: string): string | undefined {
  for (const [whole, inside = ""] of template.matchAll(place)) {
    if (!pathOf(inside))
      return `${whole.slice(0, 80)} is no place: a path begins with ${roots.join(", ")}, as in {{body.issue.title}}`;
  }
  return undefined;
}

/** Strings as they are, all else as compact JSON, what is not there as nothing. */
export function fill(template: string, delivered: Delivered): string {
  return template.replaceAll(place, (_, inside: string) => {
    const value = lookUp(delivered, pathOf(inside) ?? []);
    return typeof value === "string" ? value : (JSON.stringify(value) ?? "");
  });
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
