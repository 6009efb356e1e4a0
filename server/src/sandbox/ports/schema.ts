import { z } from "zod";

export const PortQuery = z.strictObject({ port: z.int().min(1).max(65_535) });

export const PortHost = z
  .object({
    port: z.int(),
    host: z.string().describe("With a port of its own where the server's is not 443."),
    url: z.string(),
  })
  .meta({ id: "SandboxPortHost" });
