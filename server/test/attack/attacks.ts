/** Hostile requests against an operation, made from its document and from a valid call. */
import { hasScope } from "#accounts/actor.ts";
import type { Call, Case } from "../contract/cases/case.ts";
import { anyPath, isPublic, jsonBodyOf, type Operation } from "../contract/operations.ts";
import type { Reply, World } from "../contract/world.ts";
import type { Callers } from "./callers.ts";
import { type Field, fieldsOf, withField } from "./fields.ts";
import type { Random } from "./random.ts";
import { contentTypes, hostileBodies, hostileJson, hostileWords, telling } from "./values.ts";

export interface Attack {
  name: string;
  path: string;
  token: string | null;
  payload?: string | Buffer;
  headers?: Readonly<Record<string, string>>;
  /** Check of the response to this request, beyond the rules for every response. */
  expects?: (reply: Reply) => boolean;
}

export interface Target {
  world: World;
  callers: Callers;
  operation: Operation;
  known: Case | undefined;
  /** Call that succeeds. For an operation without a case, a call whose ids do not exist. */
  call: Call;
  /** Ids of all objects made so far, of all kinds. */
  ids: ReadonlySet<string>;
  random: Random;
  /** Number of samples that are drawn from a long list. */
  sampled: number;
}

export function attacksOn(target: Target): Attack[] {
  return [...credentials(target), ...ofPath(target), ...ofQuery(target), ...ofBody(target)];
}

function credentials({ operation, callers, random, sampled }: Target): Attack[] {
  if (isPublic(operation)) return [];
  const path = anyPath(operation);
  const needed = operation.document["x-kontor-scope"];
  const isRefused = ({ status, json }: Reply) =>
    status === 401 && (json as { code: string }).code === "unauthenticated";
  const lacks = (scope: (typeof callers.scoped)[number]["scope"]) =>
    needed !== undefined && !hasScope({ scopes: [scope] }, needed);
  return [
    { name: "no credential", path, token: null, expects: isRefused },
    ...callers.refused.map(({ name, token }) => ({ name, path, token, expects: isRefused })),
    ...random.sample(callers.scoped, sampled).map(({ scope, token }) => ({
      name: `the scope ${scope} alone`,
      path,
      token,
      ...(lacks(scope) ? { expects: ({ status }: Reply) => status === 403 } : {}),
    })),
    ...random.sample(callers.others, sampled).map(({ name, token }) => ({ name, path, token })),
  ];
}

function tokenOf({ operation, world }: Target): string | null {
  return isPublic(operation) ? null : world.owner.token;
}

/** Returns the operation's path with the call's values, of which one is replaced by a value that is already encoded. */
function pathOf({ operation, call }: Target, replaced: Readonly<Record<string, string>> = {}): string {
  return operation.path.replaceAll(
    /\{(\w+)\}/g,
    (_, name: string) => replaced[name] ?? encodeURIComponent(call.params?.[name] ?? "x"),
  );
}

function ofPath(target: Target): Attack[] {
  const { operation, call, ids, known, random, sampled, world } = target;
  const names = [...operation.path.matchAll(/\{(\w+)\}/g)].map(([, name]) => name!);
  const token = tokenOf(target);
  const body = bodyOf(call);
  const words = names.flatMap((name) =>
    [...random.sample(hostileWords, sampled), ...random.sample([...ids].map(encodeURIComponent), 1)].map(
      (word) => ({
        name: `${name} is ${word.slice(0, 60)}`,
        path: pathOf(target, { [name]: word }),
        token,
        ...body,
      }),
    ),
  );
  if (!known?.unknown || !call.params) return words;
  const stranger = world.stranger.token;
  const query = call.query === undefined ? "" : `?${call.query}`;
  let absent: Reply | undefined;
  return [
    {
      name: "what another tenant does not have",
      path: pathOf(target, known.unknown) + query,
      token: stranger,
      ...body,
      expects: (reply) => ((absent = reply), reply.status === 404),
    },
    {
      name: "what belongs to another tenant, answered as if it were not there",
      path: pathOf(target) + query,
      token: stranger,
      ...body,
      expects: (reply) => reply.status === 404 && reply.text === absent?.text,
    },
    ...words,
  ];
}

function ofQuery(target: Target): Attack[] {
  const { operation, random, sampled } = target;
  const names = (operation.document.parameters ?? []).filter((one) => one.in === "query");
  const path = anyPath(operation);
  const token = tokenOf(target);
  const queries = names.flatMap(({ name }) => [
    ...random.sample(hostileWords, sampled).map((word) => `${name}=${word}`),
    ...random.sample([`${name}=a&${name}=b`, `${name}[__proto__]=a`, `${name}[a][b]=c`, name], 1),
  ]);
  const many = Array.from({ length: 1000 }, (_, n) => `q${n}`).join("&");
  return [...queries, many].map((query) => ({
    name: `the query ${query.slice(0, 60)}`,
    path: `${path}?${query}`,
    token,
  }));
}

const json = { "content-type": "application/json" };

const bodyOf = ({ body, headers = {} }: Call): Pick<Attack, "payload" | "headers"> =>
  body === undefined ? { headers } : { payload: JSON.stringify(body), headers: { ...json, ...headers } };

function ofBody(target: Target): Attack[] {
  const { operation, known, call, random, sampled } = target;
  const schema = jsonBodyOf(operation);
  if (schema === undefined) return [];
  const path = pathOf(target);
  const token = tokenOf(target);
  const send = (name: string, payload: string | Buffer, headers: Record<string, string> = json): Attack => ({
    name,
    path,
    token,
    payload,
    headers: { ...call.headers, ...headers },
  });
  const valuesOf = (field: Field): string[] => {
    const first = [...field.kinds].flatMap((kind) => telling[kind]);
    // These fields have values that run on this host, are called, or are waited for.
    const isKept = known?.keeps?.includes(String(field.path[0]));
    if (isKept) return field.kinds.has("number") ? [...telling.number] : [];
    return [...first, ...random.sample(hostileJson, sampled)];
  };
  const [wide = "", deep = "", ...rest] = hostileBodies;
  const bodies = [wide, deep, ...random.sample(rest, sampled)];
  const whole = JSON.stringify(call.body ?? {});
  return [
    ...fieldsOf(schema, operation.schemas).flatMap((field) =>
      valuesOf(field).map((value) =>
        send(`${field.path.join(".")} is ${value.slice(0, 60)}`, withField(call.body, field, value)),
      ),
    ),
    ...bodies.map((body) => send(`the body ${body.toString().slice(0, 60)}`, body)),
    ...random
      .sample(contentTypes, sampled)
      .map((type) => send(`the content type ${type}`, whole, { "content-type": type })),
    ...(operation.route.idempotent
      ? [send("a long Idempotency-Key", whole, { ...json, "idempotency-key": "x".repeat(500) })]
      : []),
  ];
}
