/**
 * Limits of sign-in: guesses are counted by address, by account and address together, and by account, so that a
 * stranger cannot lock out the owner. A device that signed in to the account before is exempt from these limits, and
 * has its own limit. The device cookie is signed for the account and authorizes nothing else.
 */
import { randomUUID } from "node:crypto";
import { addressLimited } from "#http/errors.ts";
import { cookieValue, sessionCookie } from "#http/credential.ts";
import { RateLimiter } from "#http/limits/rate-limit.ts";
import { addressHolder } from "#http/limits/rate-rules.ts";
import type { App } from "../../app.ts";
import { signInLimited } from "../errors.ts";

/** Limit of attempts from one address: a person mistypes a few times, while a dictionary attack needs thousands. */
const perAddress = { name: "sign-in from an address", perMinute: 20, burst: 40 };
const perPair = { name: "sign-in to an account from an address", perMinute: 5, burst: 10 };
/**
 * Limit of attempts at one account: more than all addresses of a person need, and a bound for an attacker with many
 * addresses.
 */
const perAccount = { name: "sign-in to an account", perMinute: 30, burst: 60 };
const perDevice = { name: "sign-in from a known device", perMinute: 5, burst: 10 };
const perPerson = { name: "password of a signed-in person", perMinute: 5, burst: 10 };
/** A refused address is audited once a minute, so that a flood cannot fill the audit log. */
const recordedRefusals = { name: "noted refusals", perMinute: 1 };

const deviceCookie = "kontor_device";
const deviceSeconds = 365 * 86_400;
const purpose = "sign-in device";

export class SignInLimits {
  readonly #app: Pick<App, "clock" | "secrets">;
  readonly #limiter: RateLimiter;

  constructor(app: Pick<App, "clock" | "secrets">) {
    this.#app = app;
    this.#limiter = new RateLimiter(app.clock);
  }

  /** Counts an attempt to sign in. Throws when a limit is exceeded. */
  allowSignIn({ email, ip, cookies }: { email: string; ip: string; cookies: string | undefined }): void {
    const account = email.toLowerCase();
    const device = this.#knownDevice(account, cookies);
    if (device !== undefined) {
      const verdict = this.#limiter.take(device, perDevice);
      if (!verdict.isAllowed) throw signInLimited(verdict.retryAfterSeconds);
      return;
    }
    // The address is counted first, so that a refused address makes no counters for accounts.
    const address = addressHolder(ip);
    const fromAddress = this.#limiter.take(address, perAddress);
    if (!fromAddress.isAllowed) throw addressLimited(fromAddress.retryAfterSeconds);
    for (const verdict of [
      this.#limiter.take(`${address} ${account}`, perPair),
      this.#limiter.take(account, perAccount),
    ]) {
      if (!verdict.isAllowed) throw signInLimited(verdict.retryAfterSeconds);
    }
  }

  /** Counts a signed-in person's confirmation of their password. */
  allowPassword(userId: string): void {
    const verdict = this.#limiter.take(userId, perPerson);
    if (!verdict.isAllowed) throw signInLimited(verdict.retryAfterSeconds);
  }

  shouldRecordRefusal(ip: string): boolean {
    return this.#limiter.take(addressHolder(ip), recordedRefusals).isAllowed;
  }

  /** Cookie for a device that just signed in to the account. `secure` is the attribute of the session's cookie. */
  deviceCookie(email: string, secure: string): string {
    const [id, at] = [randomUUID(), Math.floor(this.#app.clock.now().getTime() / 1000)];
    const value = `${id}.${at}.${this.#app.secrets.sign(purpose, [id, at, email.toLowerCase()])}`;
    return `${deviceCookie}=${value}; Path=/api/v1/session; Max-Age=${deviceSeconds}; HttpOnly; SameSite=Strict${secure}`;
  }

  #knownDevice(account: string, cookies: string | undefined): string | undefined {
    const value = cookies === undefined ? undefined : cookieValue(cookies, deviceCookie);
    const [, id, at, signature] = /^([0-9a-f-]{36})\.(\d{1,12})\.([\w-]{43})$/.exec(value ?? "") ?? [];
    if (id === undefined || signature === undefined) return undefined;
    const isFresh = this.#app.clock.now().getTime() / 1000 - Number(at) < deviceSeconds;
    const isOurs = this.#app.secrets.verify(purpose, [id, Number(at), account], signature);
    return isFresh && isOurs ? id : undefined;
  }
}

export function cookie(secret: string, maxAgeSeconds: number, publicUrl: string | null): string {
  return `${sessionCookie}=${secret}; Path=/; Max-Age=${maxAgeSeconds}; HttpOnly; SameSite=Lax${secureAttribute(publicUrl)}`;
}

/** The cookie that removes an ended session. */
export const endedCookie = (publicUrl: string | null): string => cookie("", 0, publicUrl);

export const secureAttribute = (publicUrl: string | null): string =>
  publicUrl?.startsWith("https:") ? "; Secure" : "";
