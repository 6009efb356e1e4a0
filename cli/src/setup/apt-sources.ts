/**
 * The host's own package sources, read in both of apt's formats (sources.list(5)), so that the backports suite is
 * asked for where the host gets everything else: a mirror, a proxy or the public archive.
 */

export interface AptSource {
  uris: string[];
  suites: string[];
  components: string[];
  signedBy: string | undefined;
}

/** deb822: stanzas of `Key: value`, comments by line, continuation lines indented. */
export function parseDeb822(text: string): AptSource[] {
  return text
    .split(/\n[ \t]*\n/)
    .map((stanza) => stanzaFields(stanza))
    .filter(
      (fields) => words(fields.get("types")).includes("deb") && fields.get("enabled")?.toLowerCase() !== "no",
    )
    .map((fields) => ({
      uris: words(fields.get("uris")),
      suites: words(fields.get("suites")),
      components: words(fields.get("components")),
      // an embedded key block has line breaks and is kept as it stands
      signedBy: fields.get("signed-by"),
    }));
}

function stanzaFields(stanza: string): Map<string, string> {
  const fields = new Map<string, string>();
  let key = "";
  for (const line of stanza.split("\n")) {
    if (line.startsWith("#") || line.trim() === "") continue;
    if (/^[ \t]/.test(line)) fields.set(key, `${fields.get(key) ?? ""}\n${line}`);
    else {
      const colon = line.indexOf(":");
      key = line.slice(0, colon).trim().toLowerCase();
      fields.set(key, line.slice(colon + 1).trim());
    }
  }
  return fields;
}

/** One line each: `deb [signed-by=…] uri suite component…` */
export function parseOneLine(text: string): AptSource[] {
  return text.split("\n").flatMap((line) => {
    const match =
      /^\s*deb\s+(?:\[(?<options>[^\]]*)\]\s+)?(?<uri>\S+)\s+(?<suite>\S+)\s*(?<components>[^#]*)/.exec(line);
    if (!match?.groups) return [];
    const { options = "", uri = "", suite = "", components = "" } = match.groups;
    const signedBy = /signed-by=(\S+)/.exec(options)?.[1];
    return [{ uris: [uri], suites: [suite], components: words(components), signedBy }];
  });
}

/** The text of a `.sources` file for `<codename>-backports`, from the source that serves `<codename>`. */
export function backportsSources(sources: readonly AptSource[], codename: string): string | undefined {
  const base = sources.find(
    ({ suites, components }) => suites.includes(codename) && components.includes("main"),
  );
  if (!base) return undefined;
  return [
    "# Written by kontor: the same archive as this machine's own, for the version of runsc it needs.",
    "Types: deb",
    `URIs: ${base.uris.join(" ")}`,
    `Suites: ${codename}-backports`,
    "Components: main",
    ...(base.signedBy ? [`Signed-By: ${base.signedBy}`] : []),
    "",
  ].join("\n");
}

function words(text: string | undefined): string[] {
  return (text ?? "").split(/\s+/).filter(Boolean);
}
