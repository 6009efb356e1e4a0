/**
 * Image from which host tests boot machines: the built-in debian-12, made once and kept between runs in the
 * directory KONTOR_TEST_CACHE (default /var/cache/kontor-test).
 */
import path from "node:path";
import type { Image, ImageRecipe } from "../../driver.ts";
import { Images } from "../images.ts";
import { ADDON_RECIPES, BASE_RECIPES, finder, loadRecipes } from "../recipes.ts";

export const TEST_CACHE = process.env["KONTOR_TEST_CACHE"] ?? "/var/cache/kontor-test";
export const TEST_IMAGES = path.join(TEST_CACHE, "images");

async function testRecipe(name = "debian-12"): Promise<ImageRecipe> {
  const builtIn = await loadRecipes();
  const others = await Promise.all([ADDON_RECIPES, BASE_RECIPES].map((from) => loadRecipes(from, builtIn)));
  return finder([...builtIn, ...others.flat()])(name);
}

/** Returns the test image. `images` keeps it in TEST_IMAGES. A driver with that directory has the image at once. */
export async function testImage(
  name = "debian-12",
): Promise<{ image: Image; rootfs: string; images: Images }> {
  const images = new Images({ directory: TEST_IMAGES });
  const image = await images.ensure(await testRecipe(name));
  return { image, rootfs: images.rootfsPath(image.id), images };
}
