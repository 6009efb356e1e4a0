export default function Page() {
  return <h1>Made by Next.js</h1>;
}
