console.error("cannot start: DATABASE_URL is not set");
process.exit(7);
