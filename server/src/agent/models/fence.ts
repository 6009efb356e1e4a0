/**
 * Removes a Markdown code fence around a whole output. Some models put JSON into a fence despite their instructions.
 */
export function withoutFence(text: string): string {
  const lines = text.trim().split("\n");
  const isFenced =
    lines.length > 2 && /^```[a-zA-Z0-9]{0,20}\s*$/.test(lines[0]!) && lines.at(-1)!.trim() === "```";
  return isFenced ? lines.slice(1, -1).join("\n").trim() : text;
}
