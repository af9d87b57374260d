"""`python -m reranker_server`: settings from the environment, logs to standard error, until SIGTERM."""

from reranker_server.app import open_app
from reranker_server.settings import RerankerSettings
from serving import logs, workers
from serving.settings import load

if __name__ == "__main__":
    settings = load(RerankerSettings)
    logs.set_up("reranker", form=settings.log_format, level=settings.log_level)
    raise SystemExit(workers.run("reranker_server", settings, lambda on_fatal: open_app(settings, on_fatal)))
