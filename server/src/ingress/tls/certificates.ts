/** Source of certificates for the TLS listener. */
import type { SecureContext } from "node:tls";

export interface Certificates {
  /** True if browsers trust the certificates by default, so that names can be served by HTTPS only. */
  readonly isPublic: boolean;
  /** Returns the certificate for the server name of a handshake. Undefined makes the handshake fail. */
  contextFor(name: string): Promise<SecureContext | undefined>;
  /** Certificate for clients that send no server name. */
  defaultCertificate(): Promise<{ key: string; cert: string } | undefined>;
  /** Response to an authority's challenge over plain HTTP. Undefined for any other request. */
  challenge?: (path: string) => string | undefined;
  close?: () => void;
}
