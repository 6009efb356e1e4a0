import { expect, test } from "vitest";
import { isOwnCookie, isToken, readTokens, tokenCookie, withoutCredentials } from "./credentials.ts";

test("finds the token in the header, the cookie and the query, and removes it from the query", () => {
  const shown = readTokens("/a%20b?x=1&svc_preview_token=in%2Bquery&y=%32&&z", {
    "x-service-preview-token": "in header",
    cookie: "a=b; svc_preview_token=in-cookie; svc_preview_token=another",
  });
  expect(shown.tokens).toEqual(["in header", "in+query", "in-cookie", "another"]);
  expect(shown.inQuery).toBe("in+query");
  expect(shown.path).toBe("/a%20b?x=1&y=%32&&z");
});

test.each([
  ["/", "/"],
  ["/?svc_preview_token=x", "/"],
  ["/?svc%5Fpreview_token=x&a", "/?a"],
  ["/?a=svc_preview_token", "/?a=svc_preview_token"],
  ["/?%zz=%", "/?%zz=%"],
  ["/?svc_preview_token=a&svc_preview_token=b", "/"],
])("rewrites the header %s to %s for the guest", (path, kept) => {
  expect(readTokens(path, {}).path).toBe(kept);
});

test("removes only Kontor's credentials from request headers", () => {
  expect(withoutCredentials("X-Service-Preview-Token", "t")).toBeUndefined();
  expect(withoutCredentials("Authorization", "Bearer svc_abc")).toBeUndefined();
  expect(withoutCredentials("authorization", "bearer  svc_abc")).toBeUndefined();
  expect(withoutCredentials("Authorization", "Bearer of the app's own")).toBe("Bearer of the app's own");
  expect(withoutCredentials("Authorization", "Basic c3ZjXw==")).toBe("Basic c3ZjXw==");
  expect(withoutCredentials("Cookie", "a=1; kontor_session=s; svc_preview_token=t; b=2=2")).toBe(
    "a=1; b=2=2",
  );
  expect(withoutCredentials("Cookie", "svc_preview_token=t")).toBeUndefined();
  expect(withoutCredentials("Cookie", "my_svc_preview_token=t")).toBe("my_svc_preview_token=t");
  expect(withoutCredentials("Referer", "https://h/p?svc_preview_token=t&q=1")).toBe("https://h/p?q=1");
});

test("drops a guest's Set-Cookie for Kontor's own cookies", () => {
  expect(isOwnCookie("kontor_session=x; Path=/")).toBe(true);
  expect(isOwnCookie(" svc_preview_token ; Path=/")).toBe(true);
  expect(isOwnCookie("session=kontor_session")).toBe(false);
});

test("sets an unpartitioned cookie for a page, and a partitioned cookie inside another site's frame", () => {
  expect(tokenCookie("t", {}, false)).toBe("svc_preview_token=t; Path=/; HttpOnly; SameSite=Lax");
  expect(tokenCookie("t", {}, true)).toBe("svc_preview_token=t; Path=/; HttpOnly; SameSite=Lax; Secure");
  expect(tokenCookie("t", { "sec-fetch-dest": "iframe" }, true)).toBe(
    "svc_preview_token=t; Path=/; HttpOnly; SameSite=None; Secure; Partitioned",
  );
});

test("compares the token as a whole", () => {
  expect(isToken("secret", "secret")).toBe(true);
  expect(isToken("secre", "secret")).toBe(false);
  expect(isToken("", "secret")).toBe(false);
  expect(isToken(undefined, "secret")).toBe(false);
});
