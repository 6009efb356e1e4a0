export const greeting = "Hello from a package of the workspace";
