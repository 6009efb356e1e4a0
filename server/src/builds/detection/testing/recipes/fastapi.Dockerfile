# FastAPI, installed by uv
FROM python:3.13-slim AS build
ENV PATH=/opt/venv/bin:/opt/tools/bin:$PATH \
    VIRTUAL_ENV=/opt/venv \
    UV_PROJECT_ENVIRONMENT=/opt/venv \
    UV_LINK_MODE=copy
RUN python3 -m venv /opt/venv
RUN python3 -m venv /opt/tools && /opt/tools/bin/pip install uv
WORKDIR /app
COPY pyproject.toml uv.lock ./
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=cache,target=/root/.cache/uv \
    uv sync --frozen --no-dev --no-install-project
COPY . ./

FROM python:3.13-slim
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    PORT=8000
WORKDIR /app
COPY --from=build /opt/venv /opt/venv
COPY --from=build --chown=1000:1000 /app /app
USER 1000:1000
EXPOSE 8000
LABEL kontor.health-check-path="/"
CMD ["/bin/sh", "-c", "exec uvicorn --host 0.0.0.0 --port $PORT main:app"]
