import "reflect-metadata";
import { Controller, Get, Module } from "@nestjs/common";
import { NestFactory } from "@nestjs/core";

@Controller()
class Greeting {
  @Get()
  greet(): string {
    return "Made by Nest";
  }
}

@Module({ controllers: [Greeting] })
class App {}

void NestFactory.create(App).then((app) => app.listen(process.env["PORT"] ?? 3000, "0.0.0.0"));
