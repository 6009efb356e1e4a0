/**
 * Describes a PostgreSQL database as lines, for a comparison of two databases. The lines cover every table, sequence,
 * large object and schema object. A table's line has its row count and a hash of its rows that does not depend on their
 * order. A line is `[kind, name, …]` as JSON. The hashed text is PostgreSQL's own output, under equal settings on both
 * sides. Expressions are left out, because loading a dump rewrites them.
 */
import { createHash } from "node:crypto";

/**
 * Options that override the database owner's settings, which must not affect the output. A session with a snapshot must
 * not time out.
 */
export const sessionOptions = [
  "role=none",
  "client_encoding=UTF8",
  "standard_conforming_strings=on",
  "quote_all_identifiers=off",
  "TimeZone=UTC",
  "DateStyle=ISO,MDY",
  "IntervalStyle=postgres",
  "bytea_output=hex",
  "extra_float_digits=1",
  "lc_monetary=C",
  "row_security=off",
  "search_path=pg_catalog",
  "statement_timeout=0",
  "lock_timeout=0",
  "idle_in_transaction_session_timeout=0",
  "default_transaction_read_only=off",
  "default_transaction_deferrable=off",
]
  .map((setting) => `-c ${setting}`)
  .join(" ");

const ours = `n.nspname !~ '^pg_' and n.nspname <> 'information_schema'`;
/** Condition that excludes objects of extensions, because the extension creates them. */
const isOwn = (catalog: string, oid: string) =>
  `not exists (select from pg_depend d where d.classid = '${catalog}'::regclass and d.objid = ${oid} and d.deptype = 'e')`;
const relations = (kinds: string) =>
  `from pg_class c join pg_namespace n on n.oid = c.relnamespace
   where c.relkind in (${kinds}) and c.relpersistence <> 't' and ${ours} and ${isOwn("pg_class", "c.oid")}`;
const named = `n.nspname || '.' || c.relname`;

/**
 * Types for which equal text implies equal binary form. Hashing the binary form takes a third of the time. Two kinds
 * are excluded: floats, because a NaN has a sign, and types that hold oids of their own database.
 */
const plainTypes =
  "bool bytea char name int2 int4 int8 text varchar bpchar uuid date time timestamp timestamptz json jsonb"
    .split(" ")
    .map((name) => `'pg_catalog."${name}"'::regtype`)
    .join(", ");

const columns = (which: string) =>
  `string_agg(format('kontor_row.%I', a.attname), ', ' order by a.attnum)
     filter (where ${which} (a.atttypid in (${plainTypes})))`;
/** Expression for the columns of a table: plain columns as they are, and all others as one text. */
const rowOf = `
  select concat_ws(', ', ${columns("")}, format('format(''%%s'', row(%s))', ${columns("not")}))
  from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped`;

/**
 * Statements for psql; some generate further statements (\\gexec). Each row is formatted once and hashed twice, to 128
 * bits in all. The hashes are summed, so the order of rows does not matter. The statements use `format`, which calls a
 * type's output function; a cast could run a function of the owner.
 */
const tableRows = `
select format(
  $q$select json_build_array('table', %L, count(*), coalesce(sum(hash_record_extended(row(r), 0)), 0)::text,
       coalesce(sum(hash_record_extended(row(r), 1)), 0)::text)
     from (select record_send(row(%s)) as r from only %I.%I as kontor_row offset 0) s$q$,
  ${named}, (${rowOf}), n.nspname, c.relname)
${relations("'r'")} order by c.oid \\gexec`;

const largeObjects = `
select json_build_array('large objects', '', (select count(*) from pg_largeobject_metadata),
  coalesce(sum(hashtextextended(loid || ' ' || pageno || ' ' || encode(rtrim(data, '\\x00'), 'hex') collate "C", 0)), 0)::text)
from pg_largeobject where rtrim(data, '\\x00') <> '';`;

export const sequences = `
select format('select json_build_array(''sequence'', %L, last_value::text, is_called) from %I.%I',
  ${named}, n.nspname, c.relname)
${relations("'S'")} order by c.oid \\gexec`;

const objects = [
  `select json_build_array('schema', n.nspname, pg_get_userbyid(n.nspowner)) from pg_namespace n
   where ${ours} and n.nspname <> 'public' and ${isOwn("pg_namespace", "n.oid")};`,
  `select json_build_array('relation', ${named}, c.relkind, c.relpersistence, pg_get_userbyid(c.relowner), c.relrowsecurity)
   ${relations("'r','p','v','m','S','f'")};`,
  `select json_build_array('column', ${named} || '.' || a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
     a.attidentity, a.attgenerated, a.atthasdef)
   from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace
   where a.attnum > 0 and not a.attisdropped and c.relkind in ('r','p','v','m','f','c') and c.relpersistence <> 't'
     and ${ours} and ${isOwn("pg_class", "c.oid")};`,
  `select json_build_array('index', ${named}, t.relname, i.indisunique, i.indisprimary)
   from pg_index i join pg_class c on c.oid = i.indexrelid join pg_class t on t.oid = i.indrelid
   join pg_namespace n on n.oid = c.relnamespace
   where i.indisvalid and t.relpersistence <> 't' and ${ours} and ${isOwn("pg_class", "t.oid")};`,
  `select json_build_array('constraint', n.nspname || '.' || k.conname, k.conrelid::regclass::text, k.contype, k.convalidated)
   from pg_constraint k join pg_namespace n on n.oid = k.connamespace
   where ${ours} and ${isOwn("pg_class", "k.conrelid")} and ${isOwn("pg_type", "k.contypid")};`,
  `select json_build_array('function', p.oid::regprocedure::text, p.prokind, p.provolatile, p.prosecdef, md5(p.prosrc))
   from pg_proc p join pg_namespace n on n.oid = p.pronamespace where ${ours} and ${isOwn("pg_proc", "p.oid")};`,
  `select json_build_array('trigger', ${named} || '.' || t.tgname, t.tgenabled, t.tgtype)
   from pg_trigger t join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace
   where not t.tgisinternal and ${ours};`,
  `select json_build_array('policy', ${named} || '.' || p.polname, p.polcmd, p.polpermissive)
   from pg_policy p join pg_class c on c.oid = p.polrelid join pg_namespace n on n.oid = c.relnamespace where ${ours};`,
  `select json_build_array('type', n.nspname || '.' || t.typname, t.typtype,
     (select string_agg(e.enumlabel, ',' order by e.enumsortorder) from pg_enum e where e.enumtypid = t.oid))
   from pg_type t join pg_namespace n on n.oid = t.typnamespace
   where t.typtype in ('d','e','r') and ${ours} and ${isOwn("pg_type", "t.oid")};`,
  `select json_build_array('extension', e.extname, e.extversion) from pg_extension e;`,
].join("\n");

/** Statements for the whole content except the sequences. */
export const contentsScript = `${tableRows}\n${largeObjects}\n${objects}\n`;

/** Lines by the object that each describes. */
export type Contents = ReadonlyMap<string, readonly unknown[]>;

export function readContents(lines: readonly string[]): Contents {
  const contents = new Map<string, readonly unknown[]>();
  for (const line of lines) {
    const [kind, name, ...rest] = JSON.parse(line) as [string, string, ...unknown[]];
    contents.set(`${kind} ${name}`.trim(), rest);
  }
  return contents;
}

/** Version of the hash. Hashes of other versions are not comparable. */
const form = "2:";

export function isComparable(hash: string): boolean {
  return hash.startsWith(form);
}

/** Returns a hash of the whole content. The order of the lines does not matter. */
export function hashOf(contents: Contents): string {
  const lines = [...contents].map(([name, value]) => `${name}\t${JSON.stringify(value)}\n`).toSorted();
  return form + createHash("sha256").update(lines.join("")).digest("hex");
}

/** Returns the differences, one sentence each. Empty for equal contents. */
export function differences(expected: Contents, found: Contents): string[] {
  const sentences: string[] = [];
  for (const [name, value] of expected) {
    const other = found.get(name);
    if (other === undefined) sentences.push(`${name} is missing`);
    else if (JSON.stringify(other) !== JSON.stringify(value)) sentences.push(difference(name, value, other));
  }
  for (const name of found.keys()) if (!expected.has(name)) sentences.push(`${name} should not be there`);
  return sentences;
}

function difference(name: string, expected: readonly unknown[], found: readonly unknown[]): string {
  if (!name.startsWith("table ")) return `${name} differs`;
  const [rows, was] = [found[0], expected[0]];
  return rows === was ? `${name} has different rows` : `${name} has ${String(rows)} rows, not ${String(was)}`;
}

/**
 * Returns the differences of sequences. Sequences advance during a dump, so the restored value must lie between the
 * values before and after the dump. Sequences that were created or dropped meanwhile are skipped.
 */
export function sequenceDifferences(before: Contents, after: Contents, found: Contents): string[] {
  return [...found].flatMap(([name, value]) => {
    const ends = [before.get(name), after.get(name)];
    if (ends[0] === undefined || ends[1] === undefined) return [];
    const [low = 0n, high = 0n] = ends
      .map((end) => BigInt(String(end?.[0])))
      .toSorted((a, b) => (a < b ? -1 : 1));
    const last = BigInt(String(value[0]));
    return last < low || last > high ? [`${name} is at ${last}, not at ${high}`] : [];
  });
}
