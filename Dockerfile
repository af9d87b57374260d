# Images of the project; `docker build --target encoder .`, and likewise reranker, gateway, tools, export.
#
#   DEVICE=cpu|gpu   which onnxruntime the model servers have; gpu brings CUDA as hashed packages, so the base is the same
#   BASE             any image with Python 3.11 as `python3`, its venv module, and glibc 2.28 or newer
#   VERSION REVISION what the labels say
ARG BASE=python:3.11.14-slim-trixie
ARG DEVICE=cpu

# --- what builds: a locked pip, and the tool that writes bills of materials ----------------------------------------
FROM ${BASE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
COPY requirements requirements
RUN python3 -m venv /opt/build && /opt/build/bin/pip install --require-hashes --no-deps -r requirements/build.txt

FROM build AS wheel
COPY . .
# A date that does not move, so that the same sources give the same wheel.
RUN SOURCE_DATE_EPOCH=315532800 /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .

# --- environments: one per lock file; a change of the sources downloads nothing again ------------------------------
FROM build AS gateway-environment
RUN sh requirements/environment.sh install gateway
COPY --from=wheel /wheels /wheels
RUN sh requirements/environment.sh finish gateway

FROM build AS model-environment
ARG DEVICE
RUN sh requirements/environment.sh install "${DEVICE}"
COPY --from=wheel /wheels /wheels
RUN sh requirements/environment.sh finish "${DEVICE}"

FROM build AS tools-environment
RUN sh requirements/environment.sh install tools
COPY --from=wheel /wheels /wheels
RUN sh requirements/environment.sh finish tools

FROM build AS export-environment
RUN sh requirements/environment.sh install export
COPY --from=wheel /wheels /wheels
RUN sh requirements/environment.sh finish export

# --- what every image has ------------------------------------------------------------------------------------------
FROM ${BASE} AS runtime
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="twostage" \
      org.opencontainers.image.description="Two-stage retrieval as gRPC services" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      twostage.sbom="/opt/twostage/sbom.cdx.json"
# The bytecode is in the image and the file system is read-only; one request is tokenized by one thread.
# hadolint ignore=DL3064
ENV PATH=/opt/twostage/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1 \
    TOKENIZERS_PARALLELISM=false
# Directories that volumes are mounted on: a new named volume takes over their owner.
RUN mkdir -p /models /home/twostage/.twostage && chown -R 10001:10001 /models /home/twostage
ENV HOME=/home/twostage
WORKDIR /home/twostage
USER 10001:10001
STOPSIGNAL SIGTERM

FROM runtime AS gateway
COPY --from=gateway-environment /opt/twostage /opt/twostage
EXPOSE 50051 9464
ENTRYPOINT ["python", "-m", "gateway"]

FROM runtime AS model-server
COPY --from=model-environment /opt/twostage /opt/twostage
# Read by the NVIDIA runtime where there is one: without them a container may get a GPU without its libraries.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
# Where the gpu lock puts CUDA and cuDNN; not there, and not looked for, in the cpu image.
ENV LD_LIBRARY_PATH=/opt/twostage/cuda

FROM model-server AS encoder
EXPOSE 50052 9464
ENTRYPOINT ["python", "-m", "encoder_server"]

FROM model-server AS reranker
EXPOSE 50053 9464
ENTRYPOINT ["python", "-m", "reranker_server"]

# The command line: indexing, searching, evaluating, the demo models.
FROM runtime AS tools
COPY --from=tools-environment /opt/twostage /opt/twostage
ENTRYPOINT ["twostage"]

# The command line with torch, to make the full models once; nothing of it serves.
FROM runtime AS export
COPY --from=export-environment /opt/twostage /opt/twostage
ENTRYPOINT ["twostage"]
