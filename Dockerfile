# One image for all four services; what it runs is its first argument:
#   docker run slotmesh controller_service --help

# Any Debian or Ubuntu with Python 3.11 or newer as `python`.
ARG BASE_IMAGE=python:3.11-slim

FROM ${BASE_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/slotmesh
ENV PATH=/opt/slotmesh/bin:$PATH
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY docs/protocol.md docs/protocol.md
COPY slotmesh slotmesh
COPY router_service router_service
COPY replica_service replica_service
COPY controller_service controller_service
COPY ingress_service ingress_service
# What the digits example needs, traces, the ingress, and a controller on Kubernetes; EXTRAS= builds the mesh alone.
ARG EXTRAS=digits,otlp,http,kubernetes
# Tests of packages, and what only builds, stay behind.
RUN pip install -c constraints.txt ".${EXTRAS:+[$EXTRAS]}" \
    && find /opt/slotmesh -type d -name tests -prune -exec rm -rf {} + \
    && pip uninstall --yes setuptools pip

FROM ${BASE_IMAGE}
RUN useradd --system --uid 10001 --user-group --home-dir /app --shell /usr/sbin/nologin slotmesh \
    && install -d -o slotmesh -g slotmesh /var/lib/slotmesh
COPY --from=build /opt/slotmesh /opt/slotmesh
# Handlers are imported from the working directory: mount or copy yours here.
WORKDIR /app
COPY examples examples
ENV PATH=/opt/slotmesh/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER slotmesh
# Controller, router, replica, ingress; metrics of each.
EXPOSE 7070 7071 7072 8080 9464 9465 9466 9467
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "-m"]
CMD ["controller_service", "--help"]
