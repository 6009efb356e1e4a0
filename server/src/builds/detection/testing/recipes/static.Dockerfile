# Static site
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
    '    location / { try_files $uri $uri.html $uri/ =404; }' \
    '  }' \
    '}' \
    > /etc/nginx/site.conf
COPY public /srv/
USER 1000:1000
EXPOSE 8080
LABEL kontor.health-check-path="/"
CMD ["nginx", "-e", "stderr", "-c", "/etc/nginx/site.conf"]
