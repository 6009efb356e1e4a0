# SvelteKit, installed by npm
FROM node:22-slim AS build
ENV PATH=/app/node_modules/.bin:$PATH
WORKDIR /app
COPY package.json package-lock.json ./
RUN --mount=type=cache,target=/root/.npm \
    npm ci
COPY . ./
ENV NODE_ENV=production \
    GCP_BUILDPACKS=1
RUN npm run build
RUN --mount=type=cache,target=/root/.npm \
    npm prune --omit=dev --ignore-scripts
RUN mkdir -p node_modules

FROM node:22-slim
ENV PATH=/app/node_modules/.bin:$PATH \
    NODE_ENV=production \
    HOST=0.0.0.0 \
    HOME=/tmp \
    PORT=3000
WORKDIR /app
COPY --from=build --chown=1000:1000 /app/build /app/build
COPY --from=build --chown=1000:1000 /app/package.json /app/package.json
COPY --from=build --chown=1000:1000 /app/node_modules /app/node_modules
USER 1000:1000
EXPOSE 3000
LABEL kontor.health-check-path="/"
CMD ["node", "build"]
