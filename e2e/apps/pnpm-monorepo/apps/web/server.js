import Fastify from "fastify";
import { greeting } from "@shop/greeting";

const app = Fastify();
app.get("/", () => greeting);
await app.listen({ port: Number(process.env.PORT ?? 3000), host: "0.0.0.0" });
