/** Splits TypeScript, JavaScript or C into tokens, comments included, with TypeScript's scanner. */
import { SyntaxKind } from "typescript/unstable/ast";
import { createScanner, tokenIsIdentifierOrKeyword } from "typescript/unstable/ast/scanner";

export interface Token {
  type: "comment" | "string" | "name" | "other";
  /** A comment with its marks; a string without its quotes, `…` in place of each `${}`; else the token itself. */
  text: string;
  line: number;
  /** True if only spaces precede the token on its line. */
  ownLine: boolean;
}

const literals = new Set([SyntaxKind.StringLiteral, SyntaxKind.NoSubstitutionTemplateLiteral]);
const comments = new Set([SyntaxKind.SingleLineCommentTrivia, SyntaxKind.MultiLineCommentTrivia]);
const spaces = new Set([SyntaxKind.WhitespaceTrivia, SyntaxKind.NewLineTrivia]);

/** Tokens that end an expression: a `/` after them divides, and a template after them has a tag. */
const operands = new Set([
  SyntaxKind.Identifier,
  SyntaxKind.PrivateIdentifier,
  SyntaxKind.NumericLiteral,
  SyntaxKind.BigIntLiteral,
  SyntaxKind.StringLiteral,
  SyntaxKind.NoSubstitutionTemplateLiteral,
  SyntaxKind.TemplateTail,
  SyntaxKind.RegularExpressionLiteral,
  SyntaxKind.CloseParenToken,
  SyntaxKind.CloseBracketToken,
  SyntaxKind.CloseBraceToken,
  SyntaxKind.ThisKeyword,
]);

const tags = new Set([SyntaxKind.Identifier, SyntaxKind.CloseParenToken, SyntaxKind.GreaterThanToken]);

/**
 * Returns all tokens except spaces. Strings joined by `+` are one token; a template with a tag is left out, because its
 * text is another language.
 */
export function readTokens(source: string): Token[] {
  const scanner = createScanner(false, undefined, source);
  const lineOf = lineCounter(source);
  const tokens: Token[] = [];
  // Open braces: a template literal continues after the brace that closes its `${`.
  const braces: ("block" | Token)[] = [];
  let previous: SyntaxKind = SyntaxKind.Unknown;
  let beforePlus: Token | undefined;
  for (let kind = scanner.scan(); kind !== SyntaxKind.EndOfFile; kind = scanner.scan()) {
    if (spaces.has(kind)) continue;
    let brace: "block" | Token | undefined;
    if (kind === SyntaxKind.CloseBraceToken) {
      brace = braces.pop();
      if (typeof brace === "object") kind = scanner.reScanTemplateToken(false);
    } else if (kind === SyntaxKind.SlashToken || kind === SyntaxKind.SlashEqualsToken) {
      if (!operands.has(previous)) kind = scanner.reScanSlashToken();
    }
    const start = scanner.getTokenStart();
    const token: Token = {
      type: typeOf(kind),
      text: literals.has(kind) ? scanner.getTokenValue() : scanner.getTokenText(),
      line: lineOf(start),
      ownLine: /(^|\n)[ \t]*$/.test(source.slice(Math.max(0, start - 200), start)),
    };
    if (kind === SyntaxKind.OpenBraceToken) braces.push("block");
    if (kind === SyntaxKind.TemplateHead) {
      token.text = `${scanner.getTokenValue()}…`;
      braces.push(token);
    }
    if (typeof brace === "object") {
      brace.text += scanner.getTokenValue();
      if (kind === SyntaxKind.TemplateMiddle) {
        brace.text += "…";
        braces.push(brace);
      }
      previous = kind;
      continue;
    }
    if (token.type === "string" && !literals.has(kind) && tags.has(previous)) token.type = "other";
    if (kind === SyntaxKind.NoSubstitutionTemplateLiteral && tags.has(previous)) token.type = "other";
    if (token.type === "string" && beforePlus) {
      beforePlus.text += token.text;
    } else {
      tokens.push(token);
    }
    if (token.type !== "comment") {
      beforePlus = joinedBy(kind, previous, token, tokens, beforePlus);
      previous = kind;
    }
  }
  return tokens;
}

/** Returns the string that the next string continues: the last string, if a `+` follows it. */
function joinedBy(
  kind: SyntaxKind,
  previous: SyntaxKind,
  token: Token,
  tokens: Token[],
  joined: Token | undefined,
): Token | undefined {
  if (kind !== SyntaxKind.PlusToken || !literals.has(previous)) return undefined;
  const last = tokens.findLast((one) => one !== token && one.type !== "comment");
  tokens.pop();
  return joined ?? (last?.type === "string" ? last : undefined);
}

function typeOf(kind: SyntaxKind): Token["type"] {
  if (comments.has(kind)) return "comment";
  if (literals.has(kind) || kind === SyntaxKind.TemplateHead) return "string";
  return tokenIsIdentifierOrKeyword(kind) ? "name" : "other";
}

function lineCounter(source: string): (offset: number) => number {
  let line = 1;
  let at = 0;
  return (offset) => {
    for (; at < offset; at += 1) if (source[at] === "\n") line += 1;
    return line;
  };
}

/** Returns whether the name at `index` is a constant that holds an arrow function. */
export function isFunctionName(tokens: readonly Token[], index: number): boolean {
  let at = index + 1;
  if (tokens[at]?.text !== "=") return false;
  if (tokens[at + 1]?.text === "async") at += 1;
  if (tokens[at + 2]?.text === "=>") return true;
  if (tokens[at + 1]?.text !== "(") return false;
  let depth = 0;
  for (at += 1; at < tokens.length; at += 1) {
    if (tokens[at]?.text === "(") depth += 1;
    if (tokens[at]?.text === ")") depth -= 1;
    if (depth === 0) break;
  }
  const next = tokens[at + 1]?.text;
  return next === "=>" || next === ":";
}
