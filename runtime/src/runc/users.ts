/**
 * Whom the users of native machines are on the host: user 0 inside is FIRST_USER, and so on. The same for every machine of
 * every installation on a host: what keeps machines apart is that none has a path to another's files or processes. Nobody
 * else on the host should be given these numbers (subuid(5)).
 */
export const FIRST_USER = 100_000;
export const USERS = 65_536;
