/** Converts spans to OTLP's JSON over HTTP (opentelemetry-proto 1.x: ids are hexadecimal, 64-bit numbers are text). */

export type Attribute = string | number | boolean | readonly string[];

export interface Span {
  traceId: string;
  spanId: string;
  parentId: string | null;
  name: string;
  /** Kind of the span: `client` for calls of other services. */
  kind: "internal" | "client";
  startedAt: Date;
  endedAt: Date;
  /** Attributes of the span. Attributes with the value undefined are omitted. */
  attributes: Readonly<Record<string, Attribute | undefined>>;
  /** Reason of a failure, for the span's `status`. Undefined if the span succeeded. */
  error?: string | undefined;
}

const kinds = { internal: 1, client: 3 } as const;
const statusError = 2;

export function toOtlp(spans: readonly Span[], resource: Readonly<Record<string, Attribute>>): object {
  return {
    resourceSpans: [
      {
        resource: { attributes: toAttributes(resource) },
        scopeSpans: [{ scope: { name: "kontor.agent" }, spans: spans.map(toSpan) }],
      },
    ],
  };
}

function toSpan(span: Span): object {
  return {
    traceId: span.traceId,
    spanId: span.spanId,
    ...(span.parentId === null ? {} : { parentSpanId: span.parentId }),
    name: span.name,
    kind: kinds[span.kind],
    startTimeUnixNano: toNanoseconds(span.startedAt),
    endTimeUnixNano: toNanoseconds(span.endedAt),
    attributes: toAttributes(span.attributes),
    status: span.error === undefined ? {} : { code: statusError, message: span.error },
  };
}

const toNanoseconds = (at: Date): string => `${at.getTime()}000000`;

function toAttributes(attributes: Readonly<Record<string, Attribute | undefined>>): object[] {
  return Object.entries(attributes).flatMap(([key, value]) =>
    value === undefined ? [] : [{ key, value: toValue(value) }],
  );
}

function toValue(value: Attribute): object {
  if (typeof value === "string") return { stringValue: value };
  if (typeof value === "boolean") return { boolValue: value };
  if (typeof value === "number")
    return Number.isSafeInteger(value) ? { intValue: String(value) } : { doubleValue: value };
  return { arrayValue: { values: value.map((one) => ({ stringValue: one })) } };
}
