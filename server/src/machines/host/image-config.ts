/** Check of the configuration of a built or downloaded image. The image's author, or a step of its build, wrote it. */
import { RuntimeError } from "@kontor/runtime/driver.ts";
import type { ImageConfig } from "@kontor/runtime/oci/store.ts";

/**
 * Maximum of characters in a configuration. Linux starts no process with more arguments and environment than about 2
 * MiB (execve(2), "Limits on size").
 */
const maxChars = 1024 ** 2;

/** Fails for a configuration that no process can start with, and that PostgreSQL does not store. */
export function requireUsableConfig({ Env, Cmd, Entrypoint, User, WorkingDir }: ImageConfig): void {
  const fields = { ENV: Env, CMD: Cmd, ENTRYPOINT: Entrypoint, USER: User, WORKDIR: WorkingDir };
  let chars = 0;
  for (const [name, value] of Object.entries(fields)) {
    for (const text of [value ?? []].flat() as unknown[]) {
      if (typeof text !== "string" || text.includes("\0") || !text.isWellFormed())
        throw refuse(`${name} of the image is not plain text; remove NUL and incomplete characters.`);
      chars += text.length;
    }
  }
  if (chars > maxChars)
    throw refuse(`ENV, CMD and ENTRYPOINT of the image have more than ${maxChars} characters; shorten them.`);
}

function refuse(reason: string): RuntimeError {
  return new RuntimeError("image_failed", reason);
}
