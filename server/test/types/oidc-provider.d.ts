/** Types of the parts that the tests use; the package's own types are a separate package. */
declare module "oidc-provider" {
  import type { IncomingMessage, ServerResponse } from "node:http";

  export default class Provider {
    constructor(issuer: string, configuration: object);
    callback(): (request: IncomingMessage, response: ServerResponse) => void;
    AccessToken: {
      find(
        token: string,
      ): Promise<
        { isValid: boolean; accountId: string; aud: string; scope: string; clientId: string } | undefined
      >;
    };
    on(event: string, listener: (...values: never[]) => void): void;
  }
}
