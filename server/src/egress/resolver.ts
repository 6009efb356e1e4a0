/**
 * The DNS resolver of restricted machines, over UDP. An allowed name resolves to the addresses that the proxy would
 * use; any other name is refused at once. Responses hold only addresses and are written here. Names that are not
 * allowed are never queried, so DNS is no tunnel.
 */
import dgram from "node:dgram";
import { isKnown, parseHostName } from "./allowlist.ts";
import type { Client, Clients, OnDenied } from "./clients.ts";
import { Denial, type DenialCode } from "./denials.ts";
import type { AllowedNameResolver } from "./destination.ts";
import { type Code, type Question, readQuestion, TYPE_A, writeResponse, writeError } from "./dns-message.ts";

/** Maximum of open DNS queries of a machine: the same limit as in the forwarder of open machines. */
const MAX_QUESTIONS_PER_MACHINE = 64;
const CODE_OF: Partial<Record<DenialCode, Code>> = { no_such_name: "noSuchName", unavailable: "failed" };

export interface ResolverDeps {
  clients: Clients;
  names: AllowedNameResolver;
  denied: OnDenied;
}

/** Listens on a free port of the address. */
export async function openResolver(deps: ResolverDeps, address: string): Promise<dgram.Socket> {
  const socket = dgram.createSocket("udp4");
  await new Promise<void>((resolve, reject) => {
    socket.once("error", reject);
    socket.bind(0, address, resolve);
  });
  socket.removeAllListeners("error").on("error", () => {});
  let isOpen = true;
  socket.on("close", () => (isOpen = false));
  socket.on("message", (message, from) => {
    const client = deps.clients.at(from.address);
    if (client === undefined || client.questions >= MAX_QUESTIONS_PER_MACHINE) return;
    client.questions += 1;
    void respond(deps, client, message)
      .then((bytes) => {
        if (bytes !== null && isOpen && !client.signal.aborted) socket.send(bytes, from.port, from.address);
      })
      .finally(() => (client.questions -= 1));
  });
  return socket;
}

/** Returns the response to a message, or null if the message gets none. */
async function respond(deps: ResolverDeps, client: Client, message: Buffer): Promise<Buffer | null> {
  const question = readQuestion(message);
  if (question === null) return null;
  if (typeof question === "string") return writeError(message, question);
  try {
    return writeResponse(question, "ok", await lookUp(deps, client, question));
  } catch (error) {
    const denial = error instanceof Denial ? error : new Denial("unavailable");
    deps.denied(client, denial, question.name);
    return writeResponse(question, CODE_OF[denial.code] ?? "refused");
  }
}

async function lookUp({ names }: ResolverDeps, client: Client, { name, type }: Question): Promise<string[]> {
  const host = parseHostName(name);
  if (host === undefined || !isKnown(await client.allowed(), host)) throw new Denial("not_allowed", name);
  // Machines have no IPv6, and other records are useless behind a proxy.
  return type === TYPE_A ? names.resolve(host) : [];
}
