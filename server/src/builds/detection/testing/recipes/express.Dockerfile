# Express, installed by npm
FROM node:22-slim AS build
ENV PATH=/app/node_modules/.bin:$PATH
WORKDIR /app
COPY package.json package-lock.json ./
RUN --mount=type=cache,target=/root/.npm \
    npm ci --omit=dev
COPY . ./
ENV NODE_ENV=production

FROM node:22-slim
ENV PATH=/app/node_modules/.bin:$PATH \
    NODE_ENV=production \
    HOST=0.0.0.0 \
    HOME=/tmp \
    PORT=3000
WORKDIR /app
COPY --from=build --chown=1000:1000 /app /app
USER 1000:1000
EXPOSE 3000
LABEL kontor.health-check-path="/"
CMD ["node", "server.js"]
