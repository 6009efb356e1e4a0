/** Where a server keeps its images: each is a directory, named for its template and a hash, with its `rootfs`. */
import { readdirSync } from "node:fs";
import { join } from "node:path";

export function imagesOf(dataDirectory: string): string {
  return join(dataDirectory, "machines", "images");
}

export function rootfsOf(dataDirectory: string, template: string): string {
  const images = imagesOf(dataDirectory);
  const image = readdirSync(images).find((name) => name.startsWith(`${template}-`));
  if (!image) throw new Error(`${images} has no ${template}`);
  return join(images, image, "rootfs");
}
