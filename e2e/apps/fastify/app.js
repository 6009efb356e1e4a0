import Fastify from "fastify";

const app = Fastify();
app.get("/", () => ({ made: "by Fastify" }));
await app.listen({ port: Number(process.env.PORT ?? 3000), host: "0.0.0.0" });
