/** The bytes of an add-on: a volume of its own, whose name is made of the add-on's. */
export function volumeOf({ id }: { id: string }): string {
  return `addon_${id.replaceAll("-", "")}`;
}
