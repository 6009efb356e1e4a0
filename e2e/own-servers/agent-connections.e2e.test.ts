/**
 * A user signs in for an agent, in a real browser, at a real authorization server. The test needs no machine.
 */
import type { Browser, BrowserContext } from "playwright-core";
import { expect, test } from "vitest";
import { startSignInServer } from "../../server/src/agent/testing/sign-in-server.ts";
import { openBrowser } from "../support/browser.ts";
import { startServer } from "../support/server.ts";

/** Opens a user's browser context. Blocks resources that the authorization server's pages load from other hosts. */
async function person(browser: Browser): Promise<BrowserContext> {
  const context = await browser.newContext();
  await context.route(
    ({ hostname }) => hostname !== "127.0.0.1",
    (route) => route.abort(),
  );
  return context;
}

test("an end user signs in by the link, and only in the browser that opened it", async () => {
  const server = await startServer(
    {
      KONTOR_RUNTIME: "fake",
      KONTOR_POOL_SIZE: "0",
      KONTOR_ALLOW_FAKE_RUNTIME: "1",
      KONTOR_ALLOW_PRIVATE_HOSTS: "127.0.0.0/8",
    },
    [],
  );
  try {
    const shop = await startSignInServer({
      redirectUri: `${server.baseUrl}/connect/callback`,
      isRegistering: true,
    });
    const made = await server.api("POST", "/v1/agent-toolsets", {
      body: {
        name: "shop",
        kind: "http",
        url: shop.resource,
        auth_type: "oauth",
        oauth_per_end_user: true,
        http_tools: [
          {
            name: "find",
            description: "Finds.",
            method: "GET",
            path: "/find",
            parameters: { type: "object" },
          },
        ],
      },
    });
    expect(made.status, JSON.stringify(made.body)).toBe(201);
    const path = `/v1/agent-toolsets/${made.body.id}`;
    const started = await server.api("POST", `${path}/oauth/start`, { body: { end_user_id: "ada" } });
    expect(started.status, JSON.stringify(started.body)).toBe(200);
    const link = started.body.authorize_url as string;

    const browser = await openBrowser(server);
    const [hers, his] = [await person(browser), await person(browser)];
    const page = await hers.newPage();
    await page.goto(link);
    expect(page.url()).toContain(shop.issuer);
    const other = await his.newPage();
    expect((await other.goto(link))?.status()).toBe(410);
    await page.getByPlaceholder("Enter any login").fill("ada-at-the-shop");
    await page.getByPlaceholder("and password").fill("anything");
    await page.getByRole("button", { name: "Sign-in" }).click();
    const callback = page.waitForRequest((request) => request.url().includes("/connect/callback"));
    await page.getByRole("button", { name: "Continue" }).click();
    await page.getByRole("heading", { name: "You are connected" }).waitFor();
    expect(await hers.cookies(server.baseUrl)).not.toContainEqual(
      expect.objectContaining({ name: expect.stringContaining("kontor_connect") }),
    );
    const back = (await callback).url();
    expect((await other.goto(back))?.status()).toBe(400);
    expect((await page.goto(link))?.status()).toBe(410);

    const listed = await server.api("GET", `${path}/connections`);
    expect(listed.body).toMatchObject({ items: [{ end_user_id: "ada", status: "connected" }] });
    const query = new URL(back).searchParams;
    for (const secret of [query.get("code"), query.get("state"), link.split("/").at(-1)])
      expect(server.log.includes(secret ?? "")).toBe(false);
  } finally {
    await server.destroy();
  }
});
