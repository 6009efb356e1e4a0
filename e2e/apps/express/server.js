const express = require("express");

const app = express();
app.get("/", (request, response) => response.send(`Express on ${process.env.PORT ? "its port" : "no port"}`));
app.get("/boom", () => {
  throw new Error("boom");
});
app.listen(process.env.PORT ?? 3000);
