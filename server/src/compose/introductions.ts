/** First page of each API's document: its introduction, and its tags in the order of use. */
import type { Api } from "#http/define-route.ts";
import type { Introduction } from "#http/documents/openapi.ts";
import { readExamples } from "../examples/examples.ts";

const authentication = `## Authentication

Send an API token with every request: \`Authorization: Bearer svc_…\`. \`kontor up\` prints the operator's token. Make further
tokens with \`POST /api/v1/api-tokens\`, each with the scopes that its program needs. The scope of an operation is its
\`x-kontor-scope\`. A token sees its own workspace only: anything else is 404.`;

const siblings =
  "The same token works for all three APIs: [Platform](/docs), [Sandbox](/docs/sandbox), [Agent](/docs/agent).";

const idempotency = `## Retries

Send an \`Idempotency-Key\` with operations that list this header. A repeat with the same key, token and body within 24
hours gets the first response, with the header \`Idempotent-Replayed\`. Another body with that key is 409
\`idempotency_conflict\`.`;

const limits = `## Limits

A limit counts the requests of one token in any 60 seconds. Past it, the response is 429 \`rate_limited\` with
\`Retry-After\` in seconds. A body may have 1 MiB unless its operation names another size.`;

const errors = (invalid: string) => `## Errors

Every error is JSON. \`code\` is a stable word for programs, \`message\` is a sentence for people. ${invalid} Quote the
response header \`x-request-id\` when you ask the operator about an error.`;

const pages = (how: string) => `## Pages

${how}`;

const invalidList =
  "Invalid input is 400 `invalid_request`; `errors` names each field. An unknown field is invalid input, and the message suggests the nearest known one.";
const cursors =
  "A list with `cursor` returns `next_cursor`: send it as `cursor` to get the next page. It is null on the last page. `limit` is the number of items on a page.";

/** Sections that the sandbox and the agent API share. */
const commonSections = [siblings, authentication, errors(invalidList), idempotency, pages(cursors), limits];

export const introductions: Readonly<Record<Api, Introduction>> = {
  platform: {
    examples: () => readExamples("platform"),
    description: [
      "Deploy git repositories as apps, run functions that scale to zero, and add databases.",
      siblings,
      authentication,
      errors(
        "Invalid input is 422 `validation_error`; `detail` lists each field by `loc` and `msg`. An unknown field is invalid input, and the message suggests the nearest known one.",
      ),
      idempotency,
      pages(
        "Lists with `skip` and `limit` return the items after the first `skip`. The activity log returns `next_cursor`: send it as `cursor` to get the next page.",
      ),
      limits,
    ].join("\n\n"),
    tags: [
      ["Projects", "A project is one app: a git repository, its settings and its URL."],
      ["Deployments", "Build a commit and put it live, follow it, cancel it, roll back, restart."],
      ["Environments", "Further branches of a project, each with its own URL and variables."],
      ["Webhooks", "Deliveries of GitHub, GitLab, Gitea, Forgejo and Bitbucket, and the deploy key."],
      ["Domains", "A domain of your own for a project, with its certificate."],
      ["Monitoring", "Logs, health, statistics and request metrics."],
      ["Registry", "Images of a project, their size, and vulnerability scans."],
      ["Functions", "Handlers in Node.js and Python, their versions, logs and invocations."],
      ["Add-ons", "PostgreSQL and Redis for the workspace's apps."],
      ["Backups", "Backups of add-ons: make, schedule, download, restore."],
      ["Groups", "Named groups of projects."],
      ["Workspace", "Plan, limits and a summary of what runs."],
      ["Activity", "The audit log: each change, its time and its person."],
      ["Notifications", "Messages for people, such as failed deployments and reached limits."],
      ["API tokens", "Tokens for programs, with scopes and an expiry."],
      ["Teams", "Shared workspaces, members, roles and invitations."],
      ["Session", "Sign-in of people in a browser, password and account."],
    ],
  },
  sandbox: {
    examples: () => readExamples("sandbox"),
    description: [
      "Start isolated machines, run code in them, pause and resume them, and reach their ports.",
      ...commonSections,
    ].join("\n\n"),
    tags: [
      ["Sandboxes", "Isolated machines: create, list, pause, resume, fork, extend, terminate."],
      ["Exec", "Run a command and get its output, at once or as a stream."],
      ["Code", "Run cells in Python, JavaScript, TypeScript or bash; a context keeps its state."],
      ["Commands", "Processes in the background, their logs and signals."],
      ["Terminals", "Interactive terminals over a WebSocket."],
      ["Files", "Read, write, list, watch and transfer files, also by signed URL."],
      ["Ports", "The public URL of a port in the sandbox."],
      ["Snapshots", "Named checkpoints of a sandbox to create others from."],
      ["Templates", "Images of your own, built from commands on a base template."],
      ["Volumes", "Disks that outlive their sandbox."],
      ["Events", "Lifecycle events of sandboxes."],
      ["Webhooks", "Signed deliveries of those events to your server."],
    ],
  },
  agent: {
    examples: () => readExamples("agent"),
    description: [
      "Define agents with tools, run them durably, and let people approve single calls.",
      ...commonSections,
    ].join("\n\n"),
    tags: [
      ["Model credentials", "Keys of model providers, stored encrypted."],
      ["Agents", "Agents, their versions and aliases: create, publish, promote, pause, archive."],
      ["Runs", "Invoke an agent, follow its events, cancel or resume a run."],
      ["Sessions", "Conversations: their messages, their machine, their end."],
      ["Toolsets", "Tools by HTTP or MCP, with secrets or sign-in of people."],
      ["Approvals", "Tool calls that wait for a person's decision."],
      ["Triggers", "Schedules and signed webhooks that start runs."],
      ["End users", "Memory of a person, and erasure of all that is stored about them."],
      ["Usage", "Tokens and runs by day."],
    ],
  },
};
