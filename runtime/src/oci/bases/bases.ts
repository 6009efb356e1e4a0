/**
 * Base images for builds on a host without a registry: Docker's names, mapped to images that this host makes from its
 * package archives. The build's log reports each difference between an image and its name.
 */
export interface Base {
  /** Name of the base's recipe, below templates/ or templates/bases/. */
  recipe: string;
  /** Default command of its containers. */
  command: readonly string[];
  /** Difference from the image of this name in a registry. */
  note?: string;
  /** True if the image has another version than its name, so a registry is queried first. */
  isSubstitute?: boolean;
}

const slim = "This is the slim image: it has no compiler, and no Python beside Node.";

export const bases: ReadonlyMap<string, Base> = new Map<string, Base>([
  ...[
    { version: 12, name: "bookworm" },
    { version: 13, name: "trixie" },
  ].flatMap(({ version, name }) =>
    listNames("debian", [`${version}`, `${version}-slim`, name, `${name}-slim`], {
      recipe: `debian-${version}`,
      command: ["bash"],
    }),
  ),
  ...[20, 22, 24].flatMap((major) => [
    ...listNames("node", [`${major}-slim`, `${major}-bookworm-slim`], {
      recipe: `node-${major}`,
      command: ["node"],
    }),
    ...listNames("node", [`${major}`, `${major}-bookworm`], {
      recipe: `node-${major}`,
      command: ["node"],
      note: slim,
    }),
  ]),
  ...[11, 12, 13].flatMap((minor) => {
    const base = { recipe: `python-3.${minor}`, command: ["python3"], isSubstitute: minor === 12 };
    return [
      ...listNames("python", [`3.${minor}-slim`], base),
      ...listNames("python", [`3.${minor}`], { ...base, note: slim }),
    ];
  }),
  ...listNames("golang", ["1.24", "1.24-bookworm", "1.24-trixie"], {
    recipe: "golang-1.24",
    command: ["bash"],
    note: "It is made of Debian 13's packages.",
  }),
  // No registry has an image of this name. The recipe of a static site uses it.
  ...listNames("kontor/static-site", ["1"], { recipe: "static-site", command: ["nginx"] }),
]);

function listNames(name: string, tags: readonly string[], base: Base): [string, Base][] {
  return tags.map((tag) => [`${name}:${tag}`, base]);
}

/** Treats `docker.io/library/node:22-slim` and `node:22-slim` as the same name. */
export function findBase(name: string): Base | undefined {
  return bases.get(name.replace(/^(?:docker\.io\/)?(?:library\/)?/, ""));
}
