# Next.js, installed by yarn
FROM node:22-slim AS build
ENV PATH=/app/apps/web/node_modules/.bin:/app/node_modules/.bin:$PATH \
    YARN_NODE_LINKER=node-modules
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    apt-get update \
    && apt-get install --yes --no-install-recommends openssl
RUN npm install --global --force @yarnpkg/cli-dist@4
WORKDIR /app
COPY . ./
RUN --mount=type=cache,target=/root/.yarn/berry/cache \
    yarn install --immutable
WORKDIR /app/apps/web
ENV NODE_ENV=production \
    NEXT_TELEMETRY_DISABLED=1
RUN --mount=type=cache,target=/app/apps/web/.next/cache \
    turbo run build

FROM node:22-slim
ENV PATH=/app/apps/web/node_modules/.bin:/app/node_modules/.bin:$PATH \
    YARN_NODE_LINKER=node-modules \
    NODE_ENV=production \
    HOST=0.0.0.0 \
    HOSTNAME=0.0.0.0 \
    NEXT_TELEMETRY_DISABLED=1 \
    HOME=/tmp \
    PORT=3000
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    apt-get update \
    && apt-get install --yes --no-install-recommends openssl
WORKDIR /app/apps/web
COPY --from=build --chown=1000:1000 /app /app
USER 1000:1000
EXPOSE 3000
LABEL kontor.health-check-path="/"
CMD ["next", "start"]
