/** Where the TLS listener has its certificates from. */
import type { SecureContext } from "node:tls";

export interface Certificates {
  /** Anybody's browser knows who vouches for them: names are served by HTTPS alone. */
  readonly isPublic: boolean;
  /** For the server name of a handshake; undefined: there is none for it, and the handshake fails. */
  contextFor(name: string): Promise<SecureContext | undefined>;
  /** For clients that name nobody. */
  nameless(): Promise<{ key: string; cert: string } | undefined>;
  /** What an authority that visits by plain HTTP is answered; undefined where it is not one. */
  challenge?: (path: string) => string | undefined;
  close?: () => void;
}
