/**
 * Structured logs without secrets. Two filters work together, because each alone misses cases. The first filter
 * replaces fields at any depth whose name marks a secret. The second filter replaces text in the finished line, stacks
 * included, that looks like one of our tokens or like a password in a URL.
 */
import { pino, type Logger } from "pino";

const hidden = "[redacted]";

/** Names are compared in lower case without `_` and `-`: `apiKey`, `API_KEY` and `api-key` are equal. */
const secretNames = new Set(
  [
    ["authorization", "proxyauthorization", "cookie", "setcookie", "xapikey", "xservicesignature"],
    [
      "password",
      "passwordhash",
      "passphrase",
      "token",
      "tokenhash",
      "accesstoken",
      "refreshtoken",
      "idtoken",
    ],
    ["secret", "secrets", "clientsecret", "apikey", "privatekey", "secretskey", "gittoken", "previewtoken"],
    ["env", "envvars", "environment", "stdin", "credential", "credentials", "connectionurl", "databaseurl"],
  ].flat(),
);

/** `svc_…` API tokens, `whsec_…` webhook secrets, bearer credentials, and the password in `scheme://user:…@host`. */
const secretText =
  /\bsvc_[0-9A-Za-z]{8,}|\bwhsec_[0-9A-Za-z+/=]{8,}|(?<=\b[Bb]earer )[\w.~+/=-]{8,}|(?<=[a-z]:\/\/[^\s:/@"]*:)[^\s/@"]+(?=@)/g;

/**
 * Maximum depth of a logged value, enough for all records of this server. Below this depth, a text with the kind of the
 * value replaces the value.
 */
const maxDepth = 8;

export interface LogOptions {
  level: string;
  format: "json" | "pretty";
  /** Default: standard output. */
  write?: (line: string) => void;
}

export function createLog({
  level,
  format,
  write = (line) => process.stdout.write(line),
}: LogOptions): Logger {
  const log = pino(
    {
      level,
      base: null,
      timestamp: () => `,"time":"${new Date().toISOString()}"`,
      formatters: {
        level: (label) => ({ level: label }),
        log: (fields) => redact(fields) as Record<string, unknown>,
      },
      // `redact` makes plain objects of errors, under any field name.
      serializers: { err: (value: unknown) => value },
    },
    {
      write: (line: string) => {
        const clean = line.replace(secretText, hidden);
        write(format === "json" ? clean : pretty(clean));
      },
    },
  );
  // pino does not pass the fields of a child logger through formatters. Children inherit this method.
  const child = Reflect.get(log, "child") as Logger["child"];
  log.child = function (this: Logger, fields, options) {
    return child.call(this, redact(fields) as typeof fields, options);
  } as typeof log.child;
  return log;
}

/** Returns a copy without secrets, with errors as plain objects. */
function redact(value: unknown, depth = 0): unknown {
  if (typeof value === "bigint") return value.toString();
  if (typeof value !== "object" || value === null || value instanceof Date) return value;
  if (depth >= maxDepth) return Array.isArray(value) ? "[array]" : "[object]";
  if (value instanceof Error) return plainError(value, depth);
  if (ArrayBuffer.isView(value)) return `[${value.byteLength} bytes]`;
  if (Array.isArray(value)) return value.map((item) => redact(item, depth + 1));
  return Object.fromEntries(
    Object.entries(value).map(([name, field]) => [
      name,
      isSecret(name, field) ? hidden : redact(field, depth + 1),
    ]),
  );
}

/** Copies only named fields of an error, because others, such as PostgreSQL's `detail`, may quote the row. */
function plainError(error: Error, depth: number): Record<string, unknown> {
  const { code, kind, status, details, problems } = error as Error & Record<string, unknown>;
  const fields = { type: error.name, message: error.message, code, kind, status, stack: error.stack };
  return {
    ...Object.fromEntries(Object.entries(fields).filter(([, field]) => field !== undefined)),
    ...(details === undefined ? {} : { details: redact(details, depth + 1) }),
    ...(problems === undefined ? {} : { problems: redact(problems, depth + 1) }),
    ...(error.cause === undefined ? {} : { cause: redact(error.cause, depth + 1) }),
  };
}

function isSecret(name: string, value: unknown): boolean {
  return value !== null && value !== undefined && secretNames.has(name.toLowerCase().replace(/[_-]/g, ""));
}

/** Formats `12:00:00.000 info  message  name=value …`, with the stack of an error below. */
function pretty(line: string): string {
  const { time, level, msg, ...fields } = JSON.parse(line) as Record<string, unknown>;
  const stacks = Object.values(fields).flatMap((field) => stackOf(field));
  const words = Object.entries(fields).map(([name, field]) => `${name}=${short(field)}`);
  const head = [String(time).slice(11, 23), String(level).padEnd(5), msg, ...words].filter(Boolean).join(" ");
  return [head, ...stacks].join("\n") + "\n";
}

function short(field: unknown): string {
  if (typeof field === "object" && field !== null && "stack" in field && "message" in field)
    return String(field.message);
  return typeof field === "string" ? field : JSON.stringify(field);
}

function stackOf(field: unknown): string[] {
  return typeof field === "object" && field !== null && "stack" in field ? [String(field.stack)] : [];
}
