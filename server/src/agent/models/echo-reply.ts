/**
 * Replies of the model `echo`: deterministic, from the conversation alone. A line `call <tool> {json}` of the last
 * input becomes a call of that tool. Results of tools become the answer; any other input is the answer itself. This
 * file imports nothing, so that the model server of `kontor dev-world` uses the same replies.
 */

interface EchoCall {
  tool: string;
  /** Arguments of the call, as the text of a JSON object. */
  arguments: string;
}

export type EchoReply = { text: string } | { calls: EchoCall[] };

/** Text of the last input, or the results of tools called since then, in order. */
export type EchoTurn = { input: string } | { results: readonly string[] };

/** Maximum length of a reply. Longer texts are truncated, because answers are stored and sent as events. */
const textMaxCharacters = 100_000;
/** Maximum number of calls in a step. Further lines are ignored. */
const callsMax = 20;
const callLine = /^[ \t]*call[ \t]+(\S{1,200})[ \t]+(\{.*\})[ \t]*$/;

export function echoReply(turn: EchoTurn, tools: readonly string[]): EchoReply {
  if ("results" in turn) return { text: truncate(turn.results.join("\n")) };
  const text = truncate(turn.input);
  const calls = findCalls(text);
  if (calls.length === 0) return { text };
  const unknown = calls.find(({ tool }) => !tools.includes(tool));
  if (unknown)
    return { text: truncate(`There is no tool ${unknown.tool}. Tools: ${tools.join(", ") || "none"}.`) };
  return { calls };
}

function findCalls(text: string): EchoCall[] {
  return text
    .split("\n")
    .flatMap((line) => {
      const found = callLine.exec(line);
      return found ? [{ tool: found[1]!, arguments: found[2]! }] : [];
    })
    .slice(0, callsMax);
}

function truncate(text: string): string {
  return text.length > textMaxCharacters ? `${text.slice(0, textMaxCharacters)}…` : text;
}
