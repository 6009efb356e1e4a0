export function GET({ url }) {
  return new Response(`you asked for ${url.searchParams.get("what")}`);
}
