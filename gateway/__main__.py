"""`python -m gateway`: settings from the environment, logs to standard error, until SIGTERM."""

from gateway.app import open_app
from gateway.settings import GatewaySettings
from serving import logs, workers
from serving.settings import load

if __name__ == "__main__":
    settings = load(GatewaySettings)
    logs.set_up("gateway", form=settings.log_format, level=settings.log_level)
    raise SystemExit(workers.run("gateway", settings, lambda on_fatal: open_app(settings, on_fatal)))
