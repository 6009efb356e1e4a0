/** Runs the commands of docs/agents/sign-ins.md as printed. */
import { test } from "vitest";
import { agentHost } from "../testing/agent-app.ts";
import { runPage } from "../testing/page.ts";
import { startSignInServer } from "../testing/sign-in-server.ts";

const host = await agentHost();
const owner = await host.person();
const shop = await startSignInServer({ redirectUri: "http://127.0.0.1/never", isRegistering: true });

test("the commands of the page about sign-ins run as printed", async () => {
  await runPage("agents/sign-ins.md", { base: host.baseUrl, token: owner.token, shop: shop.resource });
});
