# Next.js, installed by pnpm
FROM node:22-slim AS build
ENV PATH=/app/node_modules/.bin:$PATH
RUN npm install --global pnpm@9.15.0
WORKDIR /app
COPY package.json pnpm-lock.yaml ./
RUN --mount=type=cache,target=/root/.local/share/pnpm/store \
    pnpm install --frozen-lockfile
COPY . ./
ENV NODE_ENV=production \
    NEXT_TELEMETRY_DISABLED=1
RUN --mount=type=cache,target=/app/.next/cache \
    next build

FROM node:22-slim
ENV PATH=/app/node_modules/.bin:$PATH \
    NODE_ENV=production \
    HOST=0.0.0.0 \
    HOSTNAME=0.0.0.0 \
    NEXT_TELEMETRY_DISABLED=1 \
    HOME=/tmp \
    PORT=3000
WORKDIR /app
COPY --from=build --chown=1000:1000 /app/.next/standalone /app
COPY --from=build --chown=1000:1000 /app/.next/static /app/.next/static
COPY --from=build --chown=1000:1000 /app/public /app/public
USER 1000:1000
EXPOSE 3000
LABEL kontor.health-check-path="/"
CMD ["node", "server.js"]
