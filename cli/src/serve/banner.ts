/** What a person needs after a start: where it is, who they are there, and a line to copy. */
import { operatorFile, type Operator } from "./server-file.ts";

export interface BannerFacts {
  data: string;
  baseUrl: string;
  operator: Operator | undefined;
  /** The password is shown once, at the first start; later the file is named. */
  firstStart: boolean;
  log: string;
  /** The authority that browsers have to trust; null where anybody's does. */
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

/** Of this installation's names alone, whoever has it: it may vouch for nothing else. */
function trust(caFile: string): string {
  return `previews are signed by ${caFile}: import it in your browser, or curl --cacert ${caFile}`;
}
