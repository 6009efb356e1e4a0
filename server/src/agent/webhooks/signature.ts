/**
 * Verifies that a sender knows the webhook's secret. The request contains the secret, or a signature of the raw body. Signatures have the format of GitHub, of this API, or of Standard Webhooks, which includes a timestamp.
 */
import { createHmac, randomBytes, timingSafeEqual } from "node:crypto";
import type { IncomingHttpHeaders } from "node:http";

const prefix = "whsec_";
const toleranceMs = 5 * 60_000;
/** Maximum number of signatures in a request. During a key rotation, Standard Webhooks sends one signature per key. */
const signaturesMax = 10;

const bodySignatures = ["x-service-signature", "x-hub-signature-256"] as const;

export function newWebhookSecret(): string {
  return prefix + randomBytes(32).toString("base64");
}

/** Returns true if the request proves the secret. The time does not depend on the secret. */
export function isAuthentic(headers: IncomingHttpHeaders, body: Buffer, secret: string, now: Date): boolean {
  return (
    isShown(headers, secret) || isSigned(headers, body, secret) || isStandard(headers, body, secret, now)
  );
}

function isShown({ authorization }: IncomingHttpHeaders, secret: string): boolean {
  const shown = /^Bearer +(\S+)$/i.exec(authorization ?? "")?.[1];
  return shown !== undefined && isSame(Buffer.from(shown), Buffer.from(secret));
}

/** Verifies a signature whose key is the whole text of the secret. */
function isSigned(headers: IncomingHttpHeaders, body: Buffer, secret: string): boolean {
  return bodySignatures.some((name) => {
    const digits = /^sha256=([0-9a-f]{64})$/i.exec(textOf(headers[name]))?.[1];
    if (digits === undefined) return false;
    return isSame(Buffer.from(digits, "hex"), createHmac("sha256", secret).update(body).digest());
  });
}

/** Verifies a signature of Standard Webhooks, whose key is the decoded part of the secret after the prefix. */
function isStandard(headers: IncomingHttpHeaders, body: Buffer, secret: string, now: Date): boolean {
  const id = textOf(headers["webhook-id"]);
  const timestamp = textOf(headers["webhook-timestamp"]);
  const signatures = textOf(headers["webhook-signature"]).split(" ").slice(0, signaturesMax);
  if (id === "" || !/^\d{1,12}$/.test(timestamp)) return false;
  if (Math.abs(now.getTime() - Number(timestamp) * 1000) > toleranceMs) return false;
  const key = Buffer.from(secret.slice(prefix.length), "base64");
  const expected = createHmac("sha256", key).update(`${id}.${timestamp}.`).update(body).digest();
  return signatures.some((signature) => {
    const text = /^v1,([A-Za-z0-9+/]{43}=)$/.exec(signature)?.[1];
    return text !== undefined && isSame(Buffer.from(text, "base64"), expected);
  });
}

/** Compares texts by their digests, so that the time does not reveal the length either. */
function isSame(one: Buffer, other: Buffer): boolean {
  const digest = (bytes: Buffer) => createHmac("sha256", "compare").update(bytes).digest();
  return timingSafeEqual(digest(one), digest(other));
}

function textOf(header: string | string[] | undefined): string {
  return typeof header === "string" ? header : "";
}
