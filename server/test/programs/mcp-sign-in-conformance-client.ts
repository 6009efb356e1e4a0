/**
 * Client for the protocol's conformance suite: creates a toolset of a server, signs in to it, and makes an agent call
 * its first tool. Signs in once more if the first sign-in was not enough.
 */
import { argv, env } from "node:process";

const server = argv.at(-1) ?? "";
const { KONTOR_URL: base = "", KONTOR_TOKEN: token = "", KONTOR_MODEL: model = "{}" } = env;
/** Credentials from the suite for a client that is registered beforehand. */
const { client_id, client_secret } = JSON.parse(env["MCP_CONFORMANCE_CONTEXT"] ?? "{}");
const name = `suite-${process.pid}`;

// oxlint-disable-next-line typescript/no-explicit-any -- answers are read as they are
async function api(method: string, path: string, body?: object): Promise<any> {
  const response = await fetch(base + path, {
    method,
    headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
    ...(body ? { body: JSON.stringify(body) } : {}),
  });
  const json = await response.json();
  if (!response.ok) throw new Error(`${path}: ${JSON.stringify(json)}`);
  return json;
}

/** Signs in with a browser that has one cookie jar, for a single user. */
async function signIn(link: string): Promise<void> {
  const cookies = new Map<string, string>();
  for (let at = link, step = 0; step < 10; step += 1) {
    const cookie = [...cookies].map(([key, value]) => `${key}=${value}`).join("; ");
    const response = await fetch(at, { redirect: "manual", headers: { cookie } });
    for (const one of response.headers.getSetCookie()) {
      const [key = "", value = ""] = (one.split(";")[0] ?? "").split("=", 2);
      cookies.set(key, value);
    }
    const location = response.headers.get("location");
    const text = await response.text();
    if (location === null && response.ok) return;
    if (location === null) throw new Error(`${at}: ${response.status} ${text}`);
    at = new URL(location, at).href;
  }
}

/** Returns the outcome of the agent's call, after one or two sign-ins. */
async function letIn(): Promise<string> {
  const { id } = await api("POST", "/v1/agent-toolsets", {
    name,
    kind: "mcp",
    url: server,
    auth_type: "oauth",
    ...(client_id ? { oauth_client_id: client_id, oauth_client_secret: client_secret } : {}),
  });
  const config = { ...JSON.parse(model), toolsets: [{ toolset_id: id }] };
  await api("POST", "/v1/agents", { name, config });
  let status = "";
  for (let tries = 0; tries < 2 && status !== "completed"; tries += 1) {
    await signIn((await api("POST", `/v1/agent-toolsets/${id}/oauth/start`, {})).authorize_url);
    await api("POST", `/v1/agent-toolsets/${id}/refresh`);
    const { run_id } = await api("POST", `/v1/agents/${name}/invoke`, { input: "Call the first tool." });
    status = (await api("GET", `/v1/agents/runs/${run_id}`)).tools_called[0]?.status ?? "not made";
  }
  return status;
}

const outcome = await letIn().catch((error: unknown) => String(error));
if (outcome !== "completed") {
  console.error(`${env["MCP_CONFORMANCE_SCENARIO"]} was not let in: ${outcome}`);
  process.exitCode = 1;
}
