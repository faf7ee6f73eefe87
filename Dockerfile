# The image of disttest: CUDA and NCCL (inside the torch wheels), the toolkit and the suites.
#
#   docker build --target cpu  .     runners without GPUs
#   docker build --target cuda .     the default: GPUs
#   docker build --target full .     cuda and a C++ compiler, which the dynamo suite needs
#
# torch's wheels bring CUDA, cuDNN and NCCL along, so that the base is a slim Python: an nvidia/cuda base would
# carry all of them twice. Nothing is downloaded at run time.
ARG BASE_IMAGE=docker.io/library/python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
# The stages that install run here. Has to be the same Python at the same path; may carry credentials or mirrors
# that must not reach the image.
ARG BUILDER_IMAGE=${BASE_IMAGE}
# What `full` adds its compiler to: cuda or cpu.
ARG FULL_OF=cuda


FROM ${BUILDER_IMAGE} AS builder
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_COMPILE=1
COPY requirements/settle /usr/local/bin/
# What goes into the image lies below /layer: only a folder that is copied with its parents keeps their times.
RUN python3 -m venv /opt/disttest \
    && mkdir -p /layer/opt && mv /opt/disttest /layer/opt/ && ln -s /layer/opt/disttest /opt/disttest
WORKDIR /build


FROM builder AS wheel
COPY requirements/build.lock requirements/
RUN /opt/disttest/bin/python -m pip install --require-hashes --only-binary :all: --requirement requirements/build.lock
COPY pyproject.toml README.md ./
COPY entrypoint entrypoint
COPY suites suites
RUN /opt/disttest/bin/python -m pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .


FROM builder AS disttest
RUN --mount=type=bind,from=wheel,source=/wheels,target=/mnt \
    /opt/disttest/bin/python -m pip install --no-index --no-deps --prefix=/own/opt/disttest /mnt/*.whl \
    && settle /own


FROM builder AS python-cpu
# The index of torch's CPU builds; empty where the builder's own pip configuration finds them.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY requirements/cpu.lock requirements/
RUN /opt/disttest/bin/python -m pip install --require-hashes --no-deps --only-binary :all: \
        ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} --requirement requirements/cpu.lock \
    && /opt/disttest/bin/python -m pip freeze | grep '^torch==' > /layer/opt/disttest/constraints.txt \
    && settle /layer


FROM builder AS python-cuda
COPY requirements/cuda.lock requirements/
RUN /opt/disttest/bin/python -m pip install --require-hashes --no-deps --only-binary :all: \
        --requirement requirements/cuda.lock \
    && /opt/disttest/bin/python -m pip freeze | grep '^torch==' > /layer/opt/disttest/constraints.txt \
    && settle /layer


FROM ${BASE_IMAGE} AS runtime
# tini is process 1: it forwards signals to disttest and reaps what the ranks leave behind.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*
# Results of a run without a mount go here, whoever runs it.
RUN install --directory --mode=1777 /workspace
# An image built from this one keeps its torch, or says which requirement is against it.
# HOME and USER let any `--user` work that /etc/passwd does not know; TINI_SUBREAPER lets tini reap under
# `docker run --init` too, where it is not process 1.
ENV PATH=/opt/disttest/bin:$PATH \
    HOME=/tmp \
    USER=disttest \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_CONSTRAINT=/opt/disttest/constraints.txt \
    UV_CONSTRAINT=/opt/disttest/constraints.txt \
    TINI_SUBREAPER=1 \
    DISTTEST_IMAGE=1
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
ARG SOURCE=https://github.com/org/dist-tests
LABEL org.opencontainers.image.title="disttest" \
      org.opencontainers.image.description="Distributed PyTorch tests in CI: toolkit and suites" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
WORKDIR /workspace
ENTRYPOINT ["tini", "--", "disttest"]
CMD ["--help"]


# In each target the libraries are one layer, and disttest a small one on top. Two builds of one lock file give that
# layer the same digest (requirements/settle), so that a release of disttest moves megabytes and not gigabytes.
FROM runtime AS cpu
COPY --from=python-cpu /layer/ /
COPY --from=disttest /own/ /


FROM runtime AS cuda
# Read by NVIDIA's container runtime on hosts where it is the default one.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=python-cuda /layer/ /
COPY --from=disttest /own/ /


FROM ${FULL_OF} AS full
# inductor and triton compile at run time; a Debian Python comes without its headers.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
       $(python3 -c 'import pathlib, sysconfig; print("" if pathlib.Path(sysconfig.get_path("include"), "Python.h").exists() else "python3-dev")') \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*


# What a plain `docker build .` makes.
FROM cuda
