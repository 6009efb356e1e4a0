/** What a tool answers, as much of it as a model is told. */

export const resultMaxBytes = 64 * 1024;

export function cutOff(text: string): string {
  const bytes = Buffer.from(text);
  if (bytes.length <= resultMaxBytes) return text;
  return `${new TextDecoder().decode(bytes.subarray(0, resultMaxBytes))}\n[cut off after ${resultMaxBytes} bytes]`;
}

/** A server that repeats what it was sent must not get the secret to the model, or into the log. */
export function hide(text: string, secret: string | undefined): string {
  return secret !== undefined && secret.length >= 4 ? text.replaceAll(secret, "[secret]") : text;
}
