/**
 * Directory of a server's images. Each image is a directory with its `rootfs`. The name of the directory consists of
 * the template's name and a hash.
 */
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
