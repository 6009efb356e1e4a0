console.error("the stylesheet is missing: theme.css");
process.exit(3);
