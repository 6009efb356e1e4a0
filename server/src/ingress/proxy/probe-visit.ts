/**
 * A probe visit to a site by its public name proves which machine serves that name. The request carries a proof that
 * only this process knows, and the ingress adds the machine to the response. No guest sees the proof or can forge the
 * response.
 */
import http, { type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { DeadlineOver, ProgressDeadline } from "#lib/concurrency/progress-deadline.ts";
import { machineHeader, visitHeader } from "./headers.ts";

export interface VisitOptions {
  machine: string;
  /** Longest wait without progress. Default: 10 s. */
  quietMs?: number;
  /** Longest total wait. Default: 2 min. */
  wholeMs?: number;
  /** True if the app used CPU time since the last call. A rejection ends the visit with its error. */
  hasProgressed?: () => Promise<boolean>;
  signal?: AbortSignal;
}

/** The site's owner sees `message`. */
export class VisitFailed extends Error {
  override readonly name = "VisitFailed";
}

const defaultQuietMs = 10_000;
const defaultWholeMs = 120_000;
const retryAfterMs = 250;
/** Error pages that an app may show briefly on a busy host. */
const passing = new Set(["not_listening", "crashed", "unavailable", "bad_response", "timeout"]);

/** Retries while a later visit may succeed: the response may be slow, or the app's port not known yet. */
export async function probeSite(
  listening: Promise<AddressInfo>,
  to: { host: string; path: string; proof: string },
  expected: VisitOptions,
): Promise<{ status: number }> {
  const { machine, quietMs = defaultQuietMs, wholeMs = defaultWholeMs, hasProgressed, signal } = expected;
  using deadline = new ProgressDeadline({ quietMs, wholeMs, ...(hasProgressed && { hasProgressed }) });
  const late = deadline.signal;
  const ended = signal === undefined ? late : AbortSignal.any([late, signal]);
  let last: string | undefined;
  for (;;) {
    try {
      const { status, answeredBy, page } = await request(listening, to, ended);
      if (answeredBy === machine) return { status };
      if (page === undefined)
        throw new VisitFailed(`another machine responded to a visit to ${to.host}, with status ${status}`);
      last = `status ${status}: ${page}`;
      if (!passing.has(page)) throw new VisitFailed(`a visit to ${to.host} returned ${last}`);
      await sleep(retryAfterMs, undefined, { signal: ended });
    } catch (cause) {
      signal?.throwIfAborted();
      if (cause instanceof VisitFailed) throw cause;
      if (!late.aborted) {
        last = (cause as Error).message;
        await sleep(retryAfterMs, undefined, { signal: ended }).catch(() => {});
        signal?.throwIfAborted();
      }
      if (late.aborted) throw new VisitFailed(timeoutMessage(deadline, to.host, last), { cause });
    }
  }
}

function timeoutMessage(
  { signal, seconds }: ProgressDeadline,
  host: string,
  last: string | undefined,
): string {
  const reason: unknown = signal.reason;
  if (!(reason instanceof DeadlineOver)) return (reason as Error).message;
  return `a visit to ${host} failed: ${last ?? `no response within ${seconds} s`}`;
}

async function request(
  listening: Promise<AddressInfo>,
  { host, path, proof }: { host: string; path: string; proof: string },
  signal: AbortSignal,
): Promise<{ status: number; answeredBy: unknown; page: string | undefined }> {
  const ask = (address: AddressInfo) =>
    http.get({
      host: loopbackOf(address.address),
      port: address.port,
      path,
      headers: { host, [visitHeader]: proof, "user-agent": "Kontor-Visit/1" },
      agent: false,
      signal,
    });
  const answer = await new Promise<IncomingMessage>((resolve, reject) => {
    const abort = () => reject(signal.reason as Error);
    if (signal.aborted) abort();
    signal.addEventListener("abort", abort, { once: true });
    listening.then((address) => ask(address).on("response", resolve).on("error", reject), reject);
  });
  // The visit reads only the status and the machine, because the body may be endless.
  answer.on("error", () => {});
  answer.destroy();
  const page = answer.headers["x-kontor-error"];
  return {
    status: answer.statusCode ?? 0,
    answeredBy: answer.headers[machineHeader],
    page: page === undefined ? undefined : String(page),
  };
}

function loopbackOf(address: string): string {
  if (address === "0.0.0.0") return "127.0.0.1";
  return address === "::" ? "::1" : address;
}
