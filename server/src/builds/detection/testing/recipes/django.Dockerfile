# Django, installed by pip
FROM python:3.13-slim AS build
ENV PATH=/opt/venv/bin:$PATH \
    VIRTUAL_ENV=/opt/venv
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev libpq-dev python3-dev
RUN python3 -m venv /opt/venv
WORKDIR /app
COPY requirements.txt ./
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install -r requirements.txt
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install gunicorn
COPY . ./
RUN python manage.py collectstatic --noinput

FROM python:3.13-slim
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    PORT=8000
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    apt-get update \
    && apt-get install --yes --no-install-recommends libpq5
WORKDIR /app
COPY --from=build /opt/venv /opt/venv
COPY --from=build --chown=1000:1000 /app /app
USER 1000:1000
EXPOSE 8000
LABEL kontor.health-check-path="/"
CMD ["/bin/sh", "-c", "exec gunicorn --bind 0.0.0.0:$PORT shop.wsgi"]
