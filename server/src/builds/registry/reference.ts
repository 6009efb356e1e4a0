/**
 * Image references as `docker pull` accepts them (github.com/distribution/reference, reference.go). A reference is
 * parsed and rebuilt from validated parts, so no part of it becomes a path, an option or another transport.
 */

export interface ImageReference {
  /** Host of the registry with its port, in lower case: `registry.example.com:5000`. Docker Hub is `docker.io`. */
  registry: string;
  /** Path of the repository in its registry: `team/app`. */
  repository: string;
  /** Tag, or digest in the form `sha256:…`. For a reference with both, the version is the digest. */
  version: string;
  /** The whole reference, with its registry. */
  text: string;
}

export const referenceMaxLength = 512;

const hub = "docker.io";
const hubAliases: ReadonlySet<string> = new Set(["index.docker.io", "registry-1.docker.io"]);

const registryPattern =
  /^(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*(?::(\d{1,5}))?$/;
const repositoryPattern =
  /^[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*(?:\/[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*)*$/;
const tagPattern = /^\w[\w.-]{0,127}$/;
export const digestPattern = /^sha256:[0-9a-f]{64}$/;

/** Parses a reference. Returns undefined for an invalid reference. */
export function parseReference(text: string): ImageReference | undefined {
  if (text.length > referenceMaxLength) return undefined;
  const [named = "", digest, ...more] = text.split("@");
  if (more.length > 0 || (digest !== undefined && !digestPattern.test(digest))) return undefined;
  const slash = named.indexOf("/");
  const first = slash < 0 ? "" : named.slice(0, slash);
  const hasRegistry = /[.:]/.test(first) || first.toLowerCase() === "localhost";
  const registry = hasRegistry ? parseRegistry(first) : hub;
  const path = hasRegistry ? named.slice(slash + 1) : named;
  const colon = path.indexOf(":");
  const tag = colon < 0 ? undefined : path.slice(colon + 1);
  const plain = colon < 0 ? path : path.slice(0, colon);
  const repository = registry === hub && !plain.includes("/") ? `library/${plain}` : plain;
  if (registry === undefined || repository.length > 255 || !repositoryPattern.test(repository))
    return undefined;
  if (tag !== undefined && !tagPattern.test(tag)) return undefined;
  const shownTag = tag ?? (digest === undefined ? "latest" : undefined);
  const suffix = `${shownTag === undefined ? "" : `:${shownTag}`}${digest === undefined ? "" : `@${digest}`}`;
  return {
    registry,
    repository,
    version: digest ?? tag ?? "latest",
    text: `${registry}/${repository}${suffix}`,
  };
}

/** Parses the host of a registry with its port, such as `ghcr.io`. Returns undefined for an invalid host. */
export function parseRegistry(text: string): string | undefined {
  const registry = text.toLowerCase();
  const port = registryPattern.exec(registry);
  if (!port || registry.length > 255 || Number(port[1] ?? 1) > 65_535 || Number(port[1] ?? 1) === 0)
    return undefined;
  // The pattern accepts hosts such as `256.1.1.1`, which no URL can have.
  if (!URL.canParse(`https://${registry}/`)) return undefined;
  return hubAliases.has(registry) ? hub : registry;
}

/** Returns the reference of the same repository with a digest in place of its version. */
export function atDigest({ registry, repository }: ImageReference, digest: string): ImageReference {
  return { registry, repository, version: digest, text: `${registry}/${repository}@${digest}` };
}

/** Returns the host that serves the API of a registry. */
export function apiHostOf({ registry }: ImageReference): string {
  return registry === hub ? "registry-1.docker.io" : registry;
}
