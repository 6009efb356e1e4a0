/** Push deliveries of the forges, with real payloads and each forge's signature. */
import { createHmac } from "node:crypto";
import { beforeEach, expect, test } from "vitest";
import type { Actor } from "#accounts/actor.ts";
import { DomainError } from "#lib/errors.ts";
import { makePerson } from "../../../../test/factories.ts";
import { testDatabase } from "../../../../test/harness.ts";
import { guessProvider } from "./forges.ts";
import { newHook } from "./hook-address.ts";
import { findHookProject, receiveHook } from "./receive-hook.ts";
import { toWebhook } from "../schema.ts";
import type { ProjectRow } from "../store.ts";
import { gitApp, makeProject } from "../testing/git-app.ts";
import { getDeployKey, getWebhook, toggleWebhook } from "./webhook.ts";

const { db } = await testDatabase();
const app = await gitApp(db);
const { user, workspace } = await makePerson(db, { workspace: { plan: "team" } });
const actor: Actor = {
  kind: "api_token",
  id: "tok_test",
  label: "test",
  role: "owner",
  userId: user.id,
  scopes: null,
  tokenId: "tok_test",
  workspaces: [
    {
      id: workspace.id,
      kind: "personal",
      role: "owner",
      plan: "team",
      sandboxTier: "free",
      suspended: false,
    },
  ],
  ip: null,
};

const secret = "a secret of the project's own";
const sha = "1f".repeat(20);
let project: ProjectRow;

beforeEach(async () => {
  project = await makeProject(app, workspace.id, {
    repo_url: "https://forge.test/team/shop.git",
    hookSecret: secret,
  });
});

const hmac = (body: string, key = secret) => createHmac("sha256", key).update(body).digest("hex");
const send = async (headers: Record<string, string>, body: string) =>
  receiveHook(app, await findHookProject(app, project.hook_id), { headers, body: Buffer.from(body) });
const queuedDeployments = () =>
  db
    .selectFrom("deployments")
    .select(["wanted_sha", "trigger_kind", "trigger_actor"])
    .where("project_id", "=", project.id)
    .where("status", "=", "queued")
    .execute();
const webhook = async () => toWebhook(app, await getWebhook(app, actor, project.id));
const refusal = (work: Promise<unknown>) =>
  work.then(
    () => "none",
    (error: unknown) => (error instanceof DomainError ? `${error.status} ${error.code}` : error),
  );

const ref = (branch: string) =>
  JSON.stringify({ ref: `refs/heads/${branch}`, before: "0".repeat(40), after: sha, commits: [] });

/** The same push in each forge's form. */
const forges: Record<string, (branch: string, delivery: string) => [Record<string, string>, string]> = {
  github: (branch, delivery) => [
    {
      "content-type": "application/json",
      "x-github-event": "push",
      "x-github-delivery": delivery,
      "x-hub-signature-256": `sha256=${hmac(ref(branch))}`,
    },
    ref(branch),
  ],
  gitlab: (branch, delivery) => {
    const body = JSON.stringify({
      object_kind: "push",
      ref: `refs/heads/${branch}`,
      after: sha,
      checkout_sha: sha,
    });
    return [
      { "x-gitlab-event": "Push Hook", "x-gitlab-event-uuid": delivery, "x-gitlab-token": secret },
      body,
    ];
  },
  gitea: (branch, delivery) => [
    {
      // Gitea sends GitHub's headers as well.
      "x-github-event": "push",
      "x-github-delivery": delivery,
      "x-gitea-event": "push",
      "x-gitea-delivery": delivery,
      "x-gitea-signature": hmac(ref(branch)),
    },
    ref(branch),
  ],
  bitbucket: (branch, delivery) => {
    const body = JSON.stringify({
      push: {
        changes: [
          { new: { type: "tag", name: "v1", target: { hash: sha } } },
          { new: { type: "branch", name: branch, target: { type: "commit", hash: sha } }, old: null },
        ],
      },
    });
    return [
      {
        "x-event-key": "repo:push",
        "x-request-uuid": delivery,
        "x-hub-signature": `sha256=${hmac(body)}`,
      },
      body,
    ];
  },
};

test.each(Object.keys(forges))("deploys a push that %s delivers, once per delivery", async (name) => {
  const forge = forges[name]!;
  const [headers, body] = forge("main", "delivery-1");
  expect(await send(headers, body)).toMatchObject({ result: "queued", deployments: [expect.any(String)] });
  expect(await queuedDeployments()).toEqual([
    { wanted_sha: sha, trigger_kind: "push", trigger_actor: { kind: "system", id: "system", label: name } },
  ]);
  const [first] = await db
    .selectFrom("deployments")
    .select("id")
    .where("project_id", "=", project.id)
    .execute();
  expect(await send(headers, body)).toMatchObject({ result: "ignored", deployments: [] });
  await Promise.all([send(...forge("main", "delivery-2")), send(...forge("main", "delivery-2"))]);
  const all = await db.selectFrom("deployments").select("id").where("project_id", "=", project.id).execute();
  expect(all).toHaveLength(2);
  expect(all).toContainEqual(first);
  expect(await webhook()).toMatchObject({
    provider: name,
    url: expect.stringMatching(new RegExp(`/api/v1/hooks/git/${project.hook_id}$`)),
    secret_hint: `…${secret.slice(-4)}`,
    last_delivery: { at: app.clock.now().toISOString(), status: 202 },
  });
});

test.each(Object.keys(forges))(
  "refuses a delivery with a wrong signature or token in the form of %s",
  async (name) => {
    const [headers, body] = forges[name]!("main", "d");
    const forged = Object.fromEntries(
      Object.entries(headers).map(([header, value]) => [
        header,
        value.includes(hmac(body))
          ? value.replace(hmac(body), hmac(body, "another"))
          : value.replace(secret, "no"),
      ]),
    );
    expect(await refusal(send(forged, body))).toBe("401 signature_invalid");
    const unsigned = Object.fromEntries(
      Object.entries(headers).filter(([header]) => !/signature|token/.test(header)),
    );
    expect(await refusal(send(unsigned, body))).toBe("401 signature_invalid");
    // GitLab sends the secret itself and no signature of the body.
    if (name !== "gitlab") expect(await refusal(send(headers, `${body} `))).toBe("401 signature_invalid");
    expect(await queuedDeployments()).toEqual([]);
    expect(await webhook()).toMatchObject({ provider: "generic", last_delivery: { status: 401 } });
  },
);

test("refuses a SHA-1 signature, and an empty one", async () => {
  const [{ "x-hub-signature-256": _, ...headers }, body] = forges["github"]!("main", "d");
  const sha1 = createHmac("sha1", secret).update(body).digest("hex");
  for (const signature of [`sha1=${sha1}`, "", "sha256=", "sha256=zz"])
    expect(await refusal(send({ ...headers, "x-hub-signature": signature }, body))).toBe(
      "401 signature_invalid",
    );
});

test("deploys nothing for pings, tags, deleted branches, other branches and other events, and returns the reason", async () => {
  const sendSigned = (body: string, event = "push") =>
    send({ "x-github-event": event, "x-hub-signature-256": `sha256=${hmac(body)}` }, body);
  const none = "0".repeat(40);
  const results = await Promise.all([
    sendSigned(JSON.stringify({ zen: "Design for failure." }), "ping"),
    sendSigned(JSON.stringify({ ref: "refs/tags/v1", after: sha })),
    sendSigned(JSON.stringify({ ref: "refs/heads/main", after: none, deleted: true })),
    sendSigned(ref("other")),
    sendSigned(JSON.stringify({ action: "opened" }), "pull_request"),
    sendSigned(JSON.stringify({ ref: "refs/heads/main", after: "--upload-pack=x" })),
    sendSigned("[]"),
  ]);
  expect(results.map(({ detail }) => detail)).toEqual([
    "A ping; the webhook works.",
    "refs/tags/v1 is not a branch.",
    "main was deleted.",
    "No environment follows other.",
    "pull_request is not a push.",
    "The delivery names no commit of a branch.",
    "The delivery names no branch.",
  ]);
  expect(results.every(({ result }) => result === "ignored")).toBe(true);
  expect(await queuedDeployments()).toEqual([]);
  expect(await refusal(sendSigned("no json"))).toBe("400 payload_invalid");
});

test("reads GitHub's form encoding, and the payload of a self-hosted Bitbucket", async () => {
  const form = new URLSearchParams({ payload: ref("main") }).toString();
  const headers = {
    "content-type": "application/x-www-form-urlencoded",
    "x-github-event": "push",
    "x-hub-signature-256": `sha256=${hmac(form)}`,
  };
  expect(await send(headers, form)).toMatchObject({ result: "queued" });
  const change = {
    ref: { id: "refs/heads/main", displayId: "main", type: "BRANCH" },
    toHash: sha,
    type: "UPDATE",
  };
  const body = JSON.stringify({ changes: [change] });
  const signature = `sha256=${hmac(body)}`;
  expect(
    await send({ "x-event-key": "repo:refs_changed", "x-hub-signature": signature }, body),
  ).toMatchObject({ result: "queued" });
});

test("deploys nothing while auto-deploy is off, and replaces the secret by a new one that is returned once", async () => {
  const [headers, body] = forges["github"]!("main", "d1");
  await toggleWebhook(app, actor, project.id, { enable: false, rotate_secret: false });
  expect(await send(headers, body)).toMatchObject({ result: "ignored" });
  const on = await toggleWebhook(app, actor, project.id, { enable: true, rotate_secret: true });
  const shown = toWebhook(app, on);
  expect(shown).toMatchObject({ auto_deploy: true, secret: expect.stringMatching(/^[A-Za-z0-9]{40}$/) });
  expect(await refusal(send(headers, body))).toBe("401 signature_invalid");
  const signature = `sha256=${hmac(body, shown.secret)}`;
  expect(await send({ ...headers, "x-hub-signature-256": signature }, body)).toMatchObject({
    result: "queued",
  });
  expect(await webhook()).not.toHaveProperty("secret");
  const deeds = await db
    .selectFrom("activity")
    .select("action")
    .where("target_id", "=", project.id)
    .execute();
  expect(deeds.map(({ action }) => action)).toEqual([
    "webhook.disabled",
    "webhook.enabled",
    "webhook.secret_rotated",
  ]);
});

test("returns 404 for an unknown id of a webhook, and for another user's webhook", async () => {
  expect(await refusal(findHookProject(app, newHook().id))).toBe("404 hook_not_found");
  const other = await makeProject(app, (await makePerson(db)).workspace.id);
  expect(await refusal(getWebhook(app, actor, other.id))).toBe("404 project_not_found");
  expect(await refusal(getDeployKey(app, actor, other.id))).toBe("404 project_not_found");
});

test.each([
  [null, "hosted"],
  ["https://github.com/a/b", "github"],
  ["git@gitlab.example.com:a/b.git", "gitlab"],
  ["ssh://git@codeberg.org/a/b", "gitea"],
  ["https://bitbucket.org/a/b", "bitbucket"],
  ["https://notgithub.com/a", "generic"],
])("guesses from the address %s the forge %s", (url, provider) => {
  expect(guessProvider(url)).toBe(provider);
});
