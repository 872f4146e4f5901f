"""`python -m backend.reference --model-path DIR FLAGS`: the reference engine as a server."""

import logging
import signal
import socket
import sys
from types import FrameType

from backend.reference import server_args

# How often the interpreter lets another thread in. The default of 5 ms would add up to that to every streamed chunk
# while the scheduler's thread computes.
THREAD_SWITCH_INTERVAL_S = 0.0005


def main() -> None:
    """Parse, bind, load, serve. Ends with status 0 after SIGTERM or SIGINT, 1 after a failure, 2 on bad flags."""
    args, changes = server_args.parse(sys.argv[1:])
    sys.setswitchinterval(THREAD_SWITCH_INTERVAL_S)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    listener = _bind(args.host, args.port)

    # torch takes a second to import: not before bad flags and a taken port were reported.
    import uvicorn

    from backend.reference import loglines
    from backend.reference.engine import Engine, scheduler_died
    from backend.reference.server import build_app

    loglines.configure(args.log_level)
    logger = logging.getLogger("slipstream.reference")
    for line in changes:
        logger.warning(line)
    logger.info("server_args=%s", args)
    try:
        engine = Engine(args)
    except Exception:  # noqa: BLE001 - the top of the process: every failure is reported in SGLang's words
        scheduler_died()

    class Server(uvicorn.Server):
        """uvicorn waits for running requests when told to stop; this engine does not."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            _stop(sig, frame)

    config = uvicorn.Config(
        build_app(engine),
        host=args.host,
        port=args.port,
        log_config=loglines.uvicorn_config(args.log_level),
        timeout_keep_alive=5,
    )
    # uvicorn leaves this line out when it is given its socket.
    url = f"http://{args.host}:{args.port}"
    logging.getLogger("uvicorn.error").info("Uvicorn running on %s (Press CTRL+C to quit)", url)
    Server(config).run(sockets=[listener])


def _bind(host: str, port: int) -> socket.socket:
    """The listening address, taken before anything is loaded; ends the process with status 1 when it is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        message = f"error while attempting to bind on address ({host!r}, {port}): {(error.strerror or '').lower()}"
        sys.exit(f"ERROR:    [Errno {error.errno}] {message}")
    return listener


def _stop(number: int, _: FrameType | None) -> None:
    from backend.reference.shutdown import end_process

    print(f"{signal.Signals(number).name} received. Shutting down...", file=sys.stderr)
    end_process(0)


if __name__ == "__main__":
    main()
