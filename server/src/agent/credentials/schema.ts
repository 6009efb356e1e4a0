/** Wire format of model credentials. */
import { z } from "zod";
import { providers } from "../agents/config.ts";
import type { CredentialRow } from "./store.ts";

export const CredentialParams = z.strictObject({
  id: z.string().max(64).describe("Id of the model credential: `mcr_…`."),
});

const name = z.string().min(1).max(64).describe("Display name, for example `production`.");
const apiKey = z
  .string()
  .min(1)
  .max(4096)
  .regex(/^[\x21-\x7e]+$/, { error: "must be printable ASCII without spaces" })
  .describe("Key of the provider, encrypted at rest and never returned. Any text for a server without keys.");

export const CredentialCreate = z
  .strictObject({
    provider: z.enum(providers).describe("Provider of the models. `openai_compatible` requires `base_url`."),
    name,
    api_key: apiKey,
    base_url: z
      .string()
      .max(2048)
      .refine(isWebAddress, {
        error: "must be an http or https URL without user name, password, query and fragment",
      })
      .nullable()
      .optional()
      .describe(
        "Base URL of the model's server. Required for `openai_compatible`; for other providers, the URL of a proxy. Default: the provider's own address.",
      ),
  })
  .meta({ id: "ModelCredentialCreate" });
export type CredentialCreate = z.output<typeof CredentialCreate>;

export const CredentialUpdate = z
  .strictObject({ name: name.optional(), api_key: apiKey.optional() })
  .refine((change) => Object.keys(change).length > 0, { error: "must name `api_key` or `name`" })
  .meta({ id: "ModelCredentialUpdate" });
export type CredentialUpdate = z.output<typeof CredentialUpdate>;

export const Credential = z
  .object({
    id: z.string().describe("Id of the model credential: `mcr_…`."),
    provider: z.enum(providers).describe("Provider of the models."),
    name: z.string().describe("Display name, for example `production`."),
    hint: z
      .string()
      .describe("Hint of the key: its last four characters, as in `…6789`, or `…` if it is short."),
    base_url: z
      .string()
      .nullable()
      .describe("Base URL of the model's server. Null for the provider's own address."),
    created_at: z.iso.datetime().describe("Time when the credential was created."),
  })
  .meta({ id: "ModelCredential" });
export type Credential = z.output<typeof Credential>;
export const CredentialList = z
  .object({ items: z.array(Credential).describe("Model credentials, newest first.") })
  .meta({ id: "ModelCredentialList" });

function isWebAddress(text: string): boolean {
  const url = URL.parse(text);
  if (url === null || !/^https?:$/.test(url.protocol)) return false;
  return [url.username, url.password, url.search, url.hash].every((part) => part === "");
}

/** Converts a row to the JSON of every response. */
export function toCredential(row: CredentialRow): Credential {
  return {
    id: row.id,
    provider: row.provider,
    name: row.name,
    hint: row.hint,
    base_url: row.base_url,
    created_at: row.created_at.toISOString(),
  };
}
