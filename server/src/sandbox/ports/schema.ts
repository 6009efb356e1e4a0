import { z } from "zod";

export const PortQuery = z.strictObject({
  port: z
    .int()
    .min(1)
    .max(65_535)
    .describe("Port of a server in the sandbox, 1 to 65535. It may begin to listen later."),
});

export const PortHost = z
  .object({
    port: z.int().describe("Port in the sandbox."),
    host: z.string().describe("Host name of the port, with `:` and the server's port if that is not 443."),
    url: z.string().describe("Public URL of the port: `https://` and `host`."),
  })
  .meta({ id: "SandboxPortHost" });
