/**
 * A guest book such as a user's app: rows in PostgreSQL and a counter in Redis, both addressed by environment
 * variables. For tests of isolation, the app also reports whether it reaches a given name and address.
 */
import { lookup } from "node:dns/promises";
import { createServer } from "node:http";
import { connect } from "node:net";
import { Redis } from "ioredis";
import pg from "pg";

const { DATABASE_URL, REDIS_URL, PORT } = process.env;
const pool = DATABASE_URL && new pg.Pool({ connectionString: DATABASE_URL, connectionTimeoutMillis: 5_000 });
if (pool) pool.on("error", () => {});
const redis = REDIS_URL && new Redis(REDIS_URL, { maxRetriesPerRequest: 3 });
if (redis) redis.on("error", () => {});

const deeds = {
  "/write": async ({ text }) => {
    await pool.query("create table if not exists visits (id serial primary key, text text not null)");
    await pool.query("insert into visits (text) values ($1)", [text]);
    return redis.incr("visits");
  },
  "/read": async () => {
    const { rows } = await pool.query("select text from visits order by id");
    return { rows: rows.map(({ text }) => text), counted: Number(await redis.get("visits")) };
  },
  "/lose": async () => {
    await pool.query("drop table visits");
    return redis.flushall();
  },
  "/reach": async ({ name, address, port }) => ({
    has: [DATABASE_URL, REDIS_URL].filter((url) => url !== undefined).length,
    name: await lookup(name).then(
      () => "found",
      ({ code }) => code,
    ),
    address: await reach(address, Number(port)),
  }),
  "/": async () => "here",
};

function reach(host, port) {
  return new Promise((resolve) => {
    const socket = connect({ host, port, timeout: 5_000 });
    socket.once("connect", () => resolve("reached"));
    socket.once("timeout", () => resolve("no answer"));
    socket.once("error", ({ code }) => resolve(code));
  });
}

createServer(async (request, response) => {
  const { pathname, searchParams } = new URL(request.url, "http://app");
  try {
    const said = await deeds[pathname](Object.fromEntries(searchParams));
    response.end(JSON.stringify(said));
  } catch (error) {
    response.writeHead(500).end(String(error));
  }
}).listen(PORT);
process.on("SIGTERM", () => process.exit(0));
