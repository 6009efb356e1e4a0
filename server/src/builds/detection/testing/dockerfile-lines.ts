/**
 * Parses a Dockerfile as a builder does: drops comments, joins lines that end in `\`, and refuses a here-document.
 * Written from the Dockerfile reference, independently of the code that writes recipes.
 */
export interface Instruction {
  word: string;
  flags: string[];
  /** Items of a JSON form, or the text of any other instruction. */
  rest: string | string[];
}

const words = "FROM RUN CMD LABEL EXPOSE ENV COPY USER WORKDIR".split(" ");

export function instructionsOf(dockerfile: string): Instruction[] {
  const logical: string[] = [];
  let open = false;
  for (const line of dockerfile.split(/\r?\n/)) {
    if (/^\s*#/.test(line) || line.trim() === "") continue;
    const continues = /\\[ \t]*$/.test(line);
    const text = line.replace(/\\[ \t]*$/, "");
    if (open) logical[logical.length - 1] += text;
    else logical.push(text);
    open = continues;
  }
  return logical.map((line) => {
    const [, word = "", after = ""] = /^\s*(\S+)\s+(.*)$/s.exec(line) ?? [];
    if (!words.includes(word)) throw new Error(`not an instruction: ${JSON.stringify(line)}`);
    const flags: string[] = [];
    let rest = after.trim();
    for (let flag = /^--\S+\s+/.exec(rest); flag; flag = /^--\S+\s+/.exec(rest)) {
      flags.push(flag[0].trim());
      rest = rest.slice(flag[0].length);
    }
    const list = jsonList(rest);
    if (list === undefined && rest.includes("<<")) throw new Error(`a here-document: ${rest}`);
    return { word, flags, rest: list ?? rest };
  });
}

function jsonList(text: string): string[] | undefined {
  if (!text.startsWith("[")) return undefined;
  const list: unknown = JSON.parse(text);
  if (!Array.isArray(list) || !list.every((each) => typeof each === "string"))
    throw new Error(`not a list of strings: ${text}`);
  return list;
}
