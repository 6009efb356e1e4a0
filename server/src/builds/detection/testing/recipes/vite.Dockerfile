# Vite, installed by bun
FROM node:22-slim AS build
ENV PATH=/app/node_modules/.bin:$PATH
RUN npm install --global bun@1
WORKDIR /app
COPY package.json bun.lock ./
RUN --mount=type=cache,target=/root/.bun/install/cache \
    bun install --frozen-lockfile
COPY . ./
ENV NODE_ENV=production
RUN bun run build
RUN ["/bin/sh", "-c", "test -d 'dist' || { echo \"kontor: The build wrote no directory \"'dist'\". Set output_directory to one that exists. index.html is in: $(find . -maxdepth 4 -name index.html -not -path '*/node_modules/*' | head -n 5 | tr '\\n' ' '); existing: $(ls -p | grep -v '^node_modules/$' | head -n 40 | tr '\\n' ' ')\"; exit 1; }"]

FROM kontor/static-site:1
RUN printf '%s\n' \
    'daemon off;' \
    'pid /tmp/nginx.pid;' \
    'events {}' \
    'http {' \
    '  include /etc/nginx/mime.types;' \
    '  default_type application/octet-stream;' \
    '  charset utf-8;' \
    '  access_log off;' \
    '  server_tokens off;' \
    '  sendfile on;' \
    '  client_body_temp_path /tmp/client_body;' \
    '  proxy_temp_path /tmp/proxy;' \
    '  fastcgi_temp_path /tmp/fastcgi;' \
    '  uwsgi_temp_path /tmp/uwsgi;' \
    '  scgi_temp_path /tmp/scgi;' \
    '  gzip on;' \
    '  gzip_vary on;' \
    '  gzip_proxied any;' \
    '  gzip_min_length 1024;' \
    '  gzip_types text/css text/javascript text/plain text/xml application/javascript application/json application/manifest+json application/wasm application/xml image/svg+xml;' \
    '  server {' \
    '    listen 8080;' \
    '    root /srv;' \
    '    absolute_redirect off;' \
    '    error_page 403 404 /404.html;' \
    '    location = /404.html { }' \
    '    add_header Cache-Control no-cache;' \
    '    location ~ /[.](?!well-known/) { return 404; }' \
    '    location ~* [.](?:css|js|mjs|map|wasm|png|jpe?g|gif|svg|webp|avif|ico|woff2?|ttf)$ { try_files $uri =404; }' \
    '    location / { try_files $uri $uri.html $uri/index.html /index.html; }' \
    '  }' \
    '}' \
    > /etc/nginx/site.conf
COPY --from=build /app/dist /srv/
USER 1000:1000
EXPOSE 8080
LABEL kontor.health-check-path="/"
CMD ["nginx", "-e", "stderr", "-c", "/etc/nginx/site.conf"]
