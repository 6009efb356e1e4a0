/** The text after a start: address, account, and a line to copy. */
import { operatorFile, type Operator } from "./server-file.ts";

export interface BannerFacts {
  data: string;
  baseUrl: string;
  operator: Operator | undefined;
  /** True at the first start, which shows the password. A later start names the file with the password. */
  firstStart: boolean;
  log: string;
  /** File of the certificate authority that browsers must trust; null for a public authority. */
  caFile: string | null;
}

export function banner({ data, baseUrl, operator, firstStart, log, caFile }: BannerFacts): string {
  const credentials = operator
    ? firstStart
      ? [`  e-mail    ${operator.email}`, `  password  ${operator.password}`, `  token     ${operator.token}`]
      : [`  e-mail    ${operator.email}`, `  password and token: ${operatorFile(data)}`]
    : [`  credentials: ${operatorFile(data)}`];
  const token =
    firstStart && operator
      ? operator.token
      : `$(sed -n 's/.*"token": *"\\([^"]*\\)".*/\\1/p' ${operatorFile(data)})`;
  return [
    "",
    `Kontor is up at ${baseUrl}`,
    `  APIs      ${baseUrl}/api/v1 (platform)  ${baseUrl}/v1/sandboxes  ${baseUrl}/v1/agents`,
    `  docs      ${baseUrl}/docs  ${baseUrl}/docs/sandbox  ${baseUrl}/docs/agent`,
    ...credentials,
    ...(caFile === null ? [] : [`  HTTPS     ${trust(caFile)}`]),
    `  log       ${log}`,
    "",
    "Try it:",
    `  curl -s ${baseUrl}/v1/sandboxes -H "Authorization: Bearer ${token}" \\`,
    `    -H 'Content-Type: application/json' -d '{"template": "debian-12", "timeout_seconds": 600}'`,
    "",
  ].join("\n");
}

/**
 * Returns the text about the certificate authority. Name constraints limit the authority to this installation's names,
 * even if its key leaks.
 */
function trust(caFile: string): string {
  return `previews are signed by ${caFile}: import it in your browser, or curl --cacert ${caFile}`;
}
