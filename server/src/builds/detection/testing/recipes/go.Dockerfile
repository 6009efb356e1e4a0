# Go, installed by go
FROM golang:1.24-bookworm AS build
ENV CGO_ENABLED=0
WORKDIR /app
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod \
    go mod download
COPY . ./
RUN --mount=type=cache,target=/go/pkg/mod \
    --mount=type=cache,target=/root/.cache/go-build \
    go build -trimpath -ldflags=-s -o bin/app .

FROM debian:12-slim
ENV HOME=/tmp \
    PORT=8080
WORKDIR /app
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build --chown=1000:1000 /app/bin/app /app/bin/app
COPY --from=build --chown=1000:1000 /app/templates /app/templates
USER 1000:1000
EXPOSE 8080
LABEL kontor.health-check-path="/"
CMD ["./bin/app"]
