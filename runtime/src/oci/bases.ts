/**
 * The images that builds may begin with where no registry is: Docker's names for what this host makes of its package
 * archives. One that is not quite what its name says is used with a sentence in the build's log.
 */
export interface Base {
  /** Its recipe, below templates/ or templates/bases/. */
  recipe: string;
  /** What a container of it runs where nothing else is said. */
  command: readonly string[];
  /** How it differs from what the name promises elsewhere. */
  note?: string;
  /** True if the image has another version than its name, so a registry is queried first. */
  isSubstitute?: boolean;
}

const slim = "It is the slim image: no compiler, and no Python beside Node.";

export const bases: ReadonlyMap<string, Base> = new Map<string, Base>([
  ...[
    { version: 12, name: "bookworm" },
    { version: 13, name: "trixie" },
  ].flatMap(({ version, name }) =>
    named("debian", [`${version}`, `${version}-slim`, name, `${name}-slim`], {
      recipe: `debian-${version}`,
      command: ["bash"],
    }),
  ),
  ...[20, 22, 24].flatMap((major) => [
    ...named("node", [`${major}-slim`, `${major}-bookworm-slim`], {
      recipe: `node-${major}`,
      command: ["node"],
    }),
    ...named("node", [`${major}`, `${major}-bookworm`], {
      recipe: `node-${major}`,
      command: ["node"],
      note: slim,
    }),
  ]),
  ...[11, 12, 13].flatMap((minor) => {
    const base = { recipe: `python-3.${minor}`, command: ["python3"], isSubstitute: minor === 12 };
    return [
      ...named("python", [`3.${minor}-slim`], base),
      ...named("python", [`3.${minor}`], { ...base, note: slim }),
    ];
  }),
  ...named("golang", ["1.24", "1.24-bookworm", "1.24-trixie"], {
    recipe: "golang-1.24",
    command: ["bash"],
    note: "It is made of Debian 13's packages.",
  }),
  // No registry has an image of this name. The recipe of a static site uses it.
  ...named("kontor/static-site", ["1"], { recipe: "static-site", command: ["nginx"] }),
]);

function named(name: string, tags: readonly string[], base: Base): [string, Base][] {
  return tags.map((tag) => [`${name}:${tag}`, base]);
}

/** `docker.io/library/node:22-slim` and `node:22-slim` are one. */
export function findBase(name: string): Base | undefined {
  return bases.get(name.replace(/^(?:docker\.io\/)?(?:library\/)?/, ""));
}
