"""`python -m backend.reference --model-path DIR FLAGS`: the reference engine as a server."""

import logging
import signal
import socket
import sys

from backend.errors import SlipstreamError
from backend.reference import server_args
from backend.reference.shutdown import stop_by_signal
from backend.thresholds import THREAD_SWITCH_INTERVAL_S

# Connections that wait while weights load; uvicorn's own default.
BACKLOG = 2048


def main() -> None:
    """Parse, bind, load, serve. Ends with status 0 after SIGTERM or SIGINT, 1 after a failure, 2 on bad flags."""
    args, changes = server_args.parse(sys.argv[1:])
    sys.setswitchinterval(THREAD_SWITCH_INTERVAL_S)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop_by_signal)
    listener = listen(args.host, args.port)

    # torch takes a second to import: bad flags and a taken port are reported before.
    from backend.reference import loglines
    from backend.reference.engine import Engine, cannot_serve, scheduler_died
    from backend.reference.serve import EngineServer

    loglines.configure(args.log_level)
    logger = logging.getLogger("slipstream.reference")
    for line in changes:
        logger.warning(line)
    logger.info("server_args=%s", args)
    try:
        engine = Engine(args)
    except SlipstreamError as error:
        cannot_serve(error)
    except Exception:  # noqa: BLE001 - the top of the process: every fault of ours is reported in SGLang's words
        scheduler_died()
    EngineServer(engine, loglines.uvicorn_config(args.log_level)).run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """The address, taken before anything is loaded; ends the process with status 1 when it is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)  # a bound socket alone would not keep a second engine from binding the same port
    except OSError as error:
        listener.close()
        message = f"error while attempting to bind on address ({host!r}, {port}): {(error.strerror or '').lower()}"
        sys.exit(f"ERROR:    [Errno {error.errno}] {message}")
    return listener


if __name__ == "__main__":
    main()
