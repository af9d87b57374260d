# Bundles and nothing else, to be mounted as an image volume:
#   docker build --file kubernetes/bundles.Dockerfile --tag REGISTRY/twostage/bundles:full-1 DIRECTORY-OF-BOTH-BUNDLES
FROM scratch
COPY --chown=10001:10001 encoder /encoder
COPY --chown=10001:10001 reranker /reranker
