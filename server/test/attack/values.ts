/**
 * Values that have broken servers before. JSON is kept as text, because `JSON.stringify` cannot produce most of it.
 * Every value is harmless as a command, because a fake machine would run it on this host.
 */

const deep = (levels: number): string => "[".repeat(levels) + "]".repeat(levels);
const deepObject = (levels: number): string => `${'{"a":'.repeat(levels)}1${"}".repeat(levels)}`;
const keys = (count: number): string => Array.from({ length: count }, (_, n) => `"k${n}":${n}`).join(",");
const many = (text: string, count: number): string => Array.from({ length: count }, () => text).join(",");

/** Values that are tried in every field of their type. */
export const telling: Readonly<Record<"string" | "number" | "free", readonly string[]>> = {
  string: ['"a\\u0000b"'],
  // The value is a fraction of milliseconds, and a short wait in seconds.
  number: ["0.30000000000000004"],
  free: [deep(5000), deepObject(5000), deepObject(60)],
};

/** Values of which a sample is tried in every field. */
export const hostileJson: readonly string[] = [
  "null",
  "false",
  "0",
  "-1",
  "-0",
  "1.5",
  "1e308",
  "1e400",
  "9007199254740993",
  "2147483648",
  '""',
  '" "',
  '"\\ud800"',
  '"\\u0000"',
  '"a\\nb\\r\\nc: d"',
  '"\\u202e\\u2066\\ufeff"',
  '"__proto__"',
  '"constructor"',
  '"../../etc/passwd"',
  '"/proc/self/environ"',
  '"%00%2e%2e"',
  `"' or 1=1 --"`,
  '"$(true)`true`"',
  '"{{constructor}}"',
  '"99999999-9999-4999-8999-999999999999"',
  '"2026-02-30T25:61:61Z"',
  '"\\ud83d\\ude00\\ud83d\\ude00"',
  `"${"x".repeat(300)}"`,
  `"${"a".repeat(70_000)}"`,
  `"${"(".repeat(5000)}"`,
  '"http://169.254.169.254/latest"',
  '"file:///etc/passwd"',
  '"http://[::ffff:127.0.0.1]:9/"',
  "[]",
  "[null]",
  "{}",
  '{"__proto__":{"a":1}}',
  '{"toString":1,"constructor":{"prototype":{}}}',
  '{"":""}',
  deep(65),
  `[${many("1", 2000)}]`,
  `[${many('{"wrong":1}', 2000)}]`,
  `{${keys(500)}}`,
];

/** Values for a whole body. The first of them are tried for every operation. */
export const hostileBodies: readonly (string | Buffer)[] = [
  `{${keys(11_000)}}`,
  `{${keys(1000)}}`,
  deep(5000),
  "null",
  "[]",
  '"text"',
  "1e999",
  "{",
  "{}x",
  '{"a":1,}',
  '{"__proto__":1}',
  '{"\\u005f_proto__":1}',
  '{"a":"\\ud800"}',
  `{"${"k".repeat(12_000)}":1}`,
  `[${many("{}", 5000)}]`,
  Buffer.from('\ufeff{"a":1}'),
  Buffer.from('{"a":1}', "utf16le"),
  Buffer.from([0x7b, 0xff, 0xfe, 0x7d]),
  Buffer.from([0xed, 0xa0, 0x80]),
  "\u0000",
];

/** Encoded values for a path or a query. No value means `true`, because a followed log has no end. */
export const hostileWords: readonly string[] = [
  "%00",
  "a%00b",
  "%2e%2e%2f%2e%2e",
  "%ff",
  "%ed%a0%80",
  "%",
  "%25",
  "__proto__",
  "-1",
  "0.5",
  "1e309",
  "NaN",
  "99999999999999999999",
  "%F0%9F%98%80",
  "a%0d%0ab",
  "%27%20or%201%3d1%20--",
  "x".repeat(400),
  "x".repeat(9000),
  "99999999-9999-4999-8999-999999999999",
  "2026-02-30",
];

export const contentTypes: readonly string[] = [
  "text/plain",
  "application/x-www-form-urlencoded",
  "multipart/form-data; boundary=x",
  "application/json; charset=utf-16",
  "application/json; charset=",
  "application/vnd.api+json",
  "application/jsonp",
  "json",
  ";",
];
