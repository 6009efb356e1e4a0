/** The interface through which handlers use a WebSocket. */

/** A WebSocket, as its handler sees it. */
export interface Socket {
  /** Aborts when the peer disconnects or must be disconnected. */
  readonly signal: AbortSignal;
  /** Yields texts as strings and binary messages as buffers, and ends with the socket. Supports a single reader. */
  readonly messages: AsyncIterable<Buffer | string>;
  /**
   * Sends a buffer unchanged, and any other value as JSON. Resolves when the kernel has the message, or the peer has
   * disconnected.
   */
  send(message: Buffer | object): Promise<void>;
  close(code: number, reason?: string): void;
}
