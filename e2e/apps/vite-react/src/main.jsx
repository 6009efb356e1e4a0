import { createRoot } from "react-dom/client";

createRoot(document.getElementById("root")).render(<h1>Rendered in the browser</h1>);
