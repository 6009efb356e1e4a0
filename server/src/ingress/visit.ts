/**
 * A visit of our own to a site, by its public name: the proof that whoever asks for that name is answered by that
 * machine. The request carries a word that this process alone knows, and the way in says in return who answered; no
 * guest sees the word, and none can say it.
 */
import http, { type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import { machineHeader, visitHeader } from "./headers.ts";

export interface Expected {
  machine: string;
  /** Of the answer's head. 10 s where absent. */
  timeoutMs?: number;
  signal?: AbortSignal;
}

/** `message` is for the owner of the site. */
export class VisitFailed extends Error {
  override readonly name = "VisitFailed";
}

const defaultTimeoutMs = 10_000;

export async function visit(
  listening: Promise<AddressInfo>,
  { host, path, proof }: { host: string; path: string; proof: string },
  { machine, timeoutMs = defaultTimeoutMs, signal }: Expected,
): Promise<{ status: number }> {
  const late = AbortSignal.timeout(timeoutMs);
  const ended = signal === undefined ? late : AbortSignal.any([late, signal]);
  const ask = (address: AddressInfo) =>
    http.get({
      host: loopbackOf(address.address),
      port: address.port,
      path,
      headers: { host, [visitHeader]: proof, "user-agent": "Kontor-Visit/1" },
      agent: false,
      signal: ended,
    });
  const answer = await new Promise<IncomingMessage>((resolve, reject) => {
    ended.addEventListener("abort", () => reject(ended.reason as Error), { once: true });
    listening.then((address) => ask(address).on("response", resolve).on("error", reject), reject);
  }).catch((error: unknown) => {
    signal?.throwIfAborted();
    const why = late.aborted ? `no answer within ${timeoutMs / 1000} s` : (error as Error).message;
    throw new VisitFailed(`a visit to ${host} failed: ${why}`, { cause: error });
  });
  // Its status and who it came from say all; the rest may be without end.
  answer.on("error", () => {});
  answer.destroy();
  const status = answer.statusCode ?? 0;
  if (answer.headers[machineHeader] === machine) return { status };
  const page = answer.headers["x-kontor-error"];
  throw new VisitFailed(
    page === undefined
      ? `a visit to ${host} was answered by somebody else, with status ${status}`
      : `a visit to ${host} was answered ${status}: ${String(page)}`,
  );
}

function loopbackOf(address: string): string {
  if (address === "0.0.0.0") return "127.0.0.1";
  return address === "::" ? "::1" : address;
}
