/** Target of audit entries for requests to a sandbox. */
import { workspacesOfSandboxes } from "./sandboxes/sandboxes.ts";

export const onSandbox = {
  kind: "sandbox",
  id: ({ id }: { id: string }) => id,
  workspacesOf: workspacesOfSandboxes,
} as const;
