"""`python -m encoder_server`: settings from the environment, logs to standard error, until SIGTERM."""

from encoder_server.app import open_app
from encoder_server.settings import EncoderSettings
from serving import logs, workers
from serving.settings import load

if __name__ == "__main__":
    settings = load(EncoderSettings)
    logs.set_up("encoder", form=settings.log_format, level=settings.log_level)
    raise SystemExit(workers.run("encoder_server", settings, lambda on_fatal: open_app(settings, on_fatal)))
