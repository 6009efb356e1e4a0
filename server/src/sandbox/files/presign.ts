/**
 * Pre-signed URLs: the holder may read or write one file of one sandbox without a token, any number of times, until the
 * URL expires. The signature is an HMAC-SHA256 over sandbox, method, path and expiry, with a key for this purpose only.
 * Nothing is stored, so a URL cannot be revoked before it expires, and stays valid across a restart of the server.
 */
import { posix } from "node:path";
import type { z } from "zod";
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { notPermitted } from "#machines/errors.ts";
import { sandboxTerminated } from "../sandboxes/errors.ts";
import { getSandbox, isViewer } from "../sandboxes/sandboxes.ts";
import { signatureInvalid, urlExpired } from "./errors.ts";
import { absolute } from "./files.ts";
import { writableRoots } from "./limits.ts";
import type { Presign, Presigned } from "./schema.ts";

export type TransferMethod = "GET" | "PUT";

const purpose = "presigned-urls";

/** The access that a signature grants. */
interface Grant {
  sandboxId: string;
  method: TransferMethod;
  path: string;
  /** Unix seconds. */
  expiresAt: number;
  /** True if a use of the URL may wake a paused sandbox. False if a viewer of the team requested the URL. */
  mayWake: boolean;
}

export async function presign(
  app: Pick<App, "config" | "db" | "secrets" | "clock">,
  actor: Actor,
  id: string,
  method: TransferMethod,
  input: z.output<typeof Presign>,
): Promise<z.output<typeof Presigned>> {
  const sandbox = await getSandbox(app, actor, id);
  if (sandbox.status === "terminated") throw sandboxTerminated(sandbox.termination_reason);
  const path = absolute(input.path);
  if (method === "PUT") refuseUnlessWritable(path, writableRoots(sandbox));
  // The time is rounded up to the full second, so that the URL lives at least as long as requested.
  const expiresAt = Math.ceil(app.clock.now().getTime() / 1000) + input.expires_in;
  const mayWake = !isViewer(actor, sandbox);
  const query = new URLSearchParams({
    path,
    svc_exp: String(expiresAt),
    ...(mayWake ? {} : { svc_wake: "no" }),
    svc_sig: app.secrets.sign(purpose, fieldsOf({ sandboxId: id, method, path, expiresAt, mayWake })),
  });
  const host = `files-${id.replace(/^sbx_/, "")}.sbx.${app.config.previewDomain}`;
  return {
    url: `https://${host}/files?${query.toString()}`,
    method,
    path,
    expires_at: new Date(expiresAt * 1000).toISOString(),
  };
}

/**
 * Returns the path of a URL, and whether it may wake the sandbox. Throws if the signature is invalid or expired.
 */
export function verify(
  app: Pick<App, "secrets" | "clock">,
  { sandboxId, method, query }: { sandboxId: string; method: TransferMethod; query: URLSearchParams },
): Pick<Grant, "path" | "mayWake"> {
  const path = query.get("path") ?? "";
  const expires = query.get("svc_exp") ?? "";
  if (!/^[1-9]\d{0,11}$/.test(expires)) throw signatureInvalid();
  const expiresAt = Number(expires);
  const mayWake = !query.has("svc_wake");
  const fields = fieldsOf({ sandboxId, method, path, expiresAt, mayWake });
  if (!app.secrets.verify(purpose, fields, query.get("svc_sig") ?? "")) throw signatureInvalid();
  if (app.clock.now().getTime() >= expiresAt * 1000) throw urlExpired();
  return { path, mayWake };
}

function fieldsOf({ sandboxId, method, path, expiresAt, mayWake }: Grant): (string | number)[] {
  return [method, sandboxId, path, expiresAt, ...(mayWake ? [] : ["no wake"])];
}

/** Checks the path as text. The machine checks the targets of symlinks at each use. */
function refuseUnlessWritable(path: string, roots: readonly string[]): void {
  const plain = posix.normalize(path);
  if (roots.some((root) => plain.startsWith(`${root}/`))) return;
  throw notPermitted(`${path} is outside the writable directories: ${roots.join(", ")}`);
}
