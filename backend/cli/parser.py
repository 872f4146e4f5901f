"""The command line of `python -m backend`. Words only: what a command does is in the module that it names."""

import argparse
from collections.abc import Callable, Sequence
from typing import TypeAlias

from backend import __version__
from backend.cli import engines, forensics, host, load, runs
from backend.cli.context import Context
from backend.errors import UsageError
from backend.schema.load import BenchRequest, Endpoint

Command = Callable[[Context, argparse.Namespace], int]
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

ENGINE_FLAG_COMMANDS = ("launch", "trace", "check")
LAUNCH_KINDS = ("reference", "sglang")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments, with `run` (the command's function) and `flags` (engine flags, what stands behind `--`).

    Exits 2 with a usage message on stderr, as argparse does; UsageError for engine flags where none are taken.
    """
    words = list(argv)
    split = words.index("--") if "--" in words else len(words)
    arguments = build_parser().parse_args(words[:split])
    arguments.flags = words[split + 1 :]
    if arguments.flags and arguments.command not in ENGINE_FLAG_COMMANDS:
        raise UsageError(f"{arguments.command} takes no engine flags, got {' '.join(arguments.flags)!r} after --")
    return arguments


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m backend",
        description="Launch, load-test and compare SGLang engines. The same jobs as in the dashboard.",
        epilog="Exit status: 0 success, 1 the thing asked about failed, 2 the command line is wrong.",
    )
    parser.add_argument("--version", action="version", version=f"slipstream {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for add in (
        _doctor,
        _inspect,
        _scan,
        _trace,
        _check,
        _diagnose,
        _agent,
        _launch,
        _status,
        _stop,
        _bench,
        _runs,
        _compare,
        _export,
        _import,
    ):
        add(commands)
    return parser


def _command(commands: Commands, name: str, run: Command, text: str, *, agent: bool = True) -> argparse.ArgumentParser:
    """One command with the options that every command has. Its first sentence is its line in the list."""
    parser = commands.add_parser(name, help=text.split(". ")[0].rstrip("."), description=text, allow_abbrev=False)
    parser.set_defaults(run=run)
    parser.add_argument("--json", action="store_true", help="the last line on stdout is one JSON document")
    if agent:
        parser.add_argument("--agent", metavar="URL", help="the agent to use; its token in SLIPSTREAM_AGENT_TOKEN")
    return parser


# ---- the machine


def _doctor(commands: Commands) -> None:
    _command(commands, "doctor", host.doctor, "What this machine has: GPUs, driver, engines, agent, store, limits.")


def _inspect(commands: Commands) -> None:
    text = "What a checkpoint holds. Reads config.json, the index and the headers of its files; is an MTP layer whole?"
    parser = _command(commands, "inspect", forensics.inspect, text)
    parser.add_argument("model", metavar="MODEL", help="checkpoint directory, or a hub id in the local cache")


def _scan(commands: Commands) -> None:
    text = (
        "Flags, choices, defaults, switches and MTP classes that an engine declares. Read from its source, never run."
    )
    parser = _command(commands, "scan", host.scan, text)
    _engine(parser)


def _trace(commands: Commands) -> None:
    text = (
        "Would this engine use this checkpoint's MTP layer? Step by step, with file and line; flags stand behind `--`."
    )
    parser = _command(commands, "trace", forensics.trace, text)
    parser.usage = "python -m backend trace [MODEL] [options] [-- ENGINE FLAGS]"
    parser.add_argument("model", metavar="MODEL", nargs="?", help="checkpoint (default: the tiny checkpoint)")
    _engine(parser)
    parser.add_argument("--env", metavar="KEY=VALUE", type=_assignment, action="append", default=[], help="repeatable")
    parser.add_argument("--markdown", action="store_true", help="as Markdown, for an issue or a note")


def _check(commands: Commands) -> None:
    text = "What an engine would refuse or change about a configuration. Before it is launched; flags behind `--`."
    parser = _command(commands, "check", forensics.check, text)
    parser.usage = "python -m backend check [MODEL] [options] -- ENGINE FLAGS"
    parser.add_argument("model", metavar="MODEL", nargs="?", help="checkpoint (default: the tiny checkpoint)")
    _engine(parser)
    parser.add_argument("--gpu", metavar="NAME", help="the GPUs it is for, e.g. `RTX PRO 6000`")
    parser.add_argument("--gpu-count", metavar="N", type=_count, help="how many of them")
    parser.add_argument("--env", metavar="KEY=VALUE", type=_assignment, action="append", default=[], help="repeatable")


def _engine(parser: argparse.ArgumentParser) -> None:
    text = "SGLang source tree, site-packages directory, environment or interpreter, or `reference`"
    parser.add_argument("--engine", metavar="PATH", help=f"{text} (default: the only one here)")


def _diagnose(commands: Commands) -> None:
    text = "Explain a saved engine log. Phases, memory, and the cause of a failure with advice."
    parser = _command(commands, "diagnose", host.diagnose, text, agent=False)
    parser.add_argument("log", metavar="LOG", help="the log file")


def _agent(commands: Commands) -> None:
    text = "Run the host agent in the foreground. It owns engines, load tests and the store; other commands start one."
    parser = _command(commands, "agent", host.agent, text, agent=False)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=_port, help="default: the previous agent's port, else a free one")
    parser.add_argument("--started-by", default="cli", help=argparse.SUPPRESS)


# ---- engines


def _launch(commands: Commands) -> None:
    text = "Launch an engine and wait until it serves. Engine flags stand behind `--`; Ctrl-C cancels the launch."
    parser = _command(commands, "launch", engines.launch, text)
    parser.usage = "python -m backend launch [MODEL] [options] [-- ENGINE FLAGS]"
    parser.add_argument("model", metavar="MODEL", nargs="?", help="checkpoint directory (default: the tiny checkpoint)")
    parser.add_argument(
        "--kind", choices=LAUNCH_KINDS, help="default: sglang with --engine or --python, else reference"
    )
    parser.add_argument("--engine", metavar="PATH", help="SGLang source tree, site-packages directory or interpreter")
    parser.add_argument("--python", metavar="INTERPRETER", help="interpreter that runs a source tree")
    parser.add_argument("--port", type=_port, help="default: the first free one")
    parser.add_argument("--gpus", metavar="IDS", type=_words, default=[], help="indices or UUIDs, e.g. 0,1")
    parser.add_argument("--env", metavar="KEY=VALUE", type=_assignment, action="append", default=[], help="repeatable")


def _status(commands: Commands) -> None:
    _command(commands, "status", engines.status, "The agent, its engines and its load tests.")


def _stop(commands: Commands) -> None:
    text = "Stop an engine and wait until it is gone. --id may be left out while one engine runs."
    parser = _command(commands, "stop", engines.stop, text)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--id", metavar="ID", help="the engine, as `status` lists it")
    which.add_argument("--all", action="store_true", help="every engine of this agent")


# ---- load tests


def _bench(commands: Commands) -> None:
    text = "Load-test an engine and store the run. Waits until the last level is done; Ctrl-C stops and keeps the run."
    default = {name: field.default for name, field in BenchRequest.model_fields.items()}
    parser = _command(commands, "bench", load.bench, text)
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--url", help="a server somebody else started: measured, never touched")
    target.add_argument("--id", metavar="ID", help="an engine of the agent (default: the one that runs)")
    parser.add_argument("--endpoint", choices=[e.value for e in Endpoint], default=default["endpoint"].value)
    parser.add_argument(
        "--concurrency", metavar="N,N,…", type=_levels, default=default["concurrency"], help="levels (default 1,2,4)"
    )
    parser.add_argument("--dataset", metavar="NAME|FILE", default=default["dataset"], help="prompts (%(default)s)")
    parser.add_argument("--input-len", metavar="N", type=int, help="cut prompts to N tokens")
    parser.add_argument("--output-len", metavar="N", type=int, default=default["output_len"], help="(%(default)s)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--requests", metavar="N", type=int, help="counted requests per level")
    length.add_argument("--duration", metavar="S", type=float, help="seconds per level")
    parser.add_argument(
        "--warmup", metavar="N", type=int, default=default["warmup_requests"], help="requests not counted (%(default)s)"
    )
    parser.add_argument("--temperature", metavar="T", type=float, default=default["temperature"], help="(%(default)s)")
    parser.add_argument("--top-p", metavar="P", type=float, default=default["top_p"], help="(%(default)s)")
    parser.add_argument("--seed", metavar="N", type=int, default=default["seed"], help="(%(default)s)")
    parser.add_argument("--no-chat-template", action="store_true", help="send prompts as they are")
    parser.add_argument("--no-flush", action="store_true", help="do not empty the prefix cache before each level")
    parser.add_argument("--respect-eos", action="store_true", help="let the model end early")
    parser.add_argument(
        "--timeout", metavar="S", type=float, default=default["timeout_s"], help="seconds per request (%(default)s)"
    )
    parser.add_argument("--tag", action="append", default=[], help="repeatable")
    parser.add_argument("--note", default="", metavar="TEXT")


# ---- stored runs


def _runs(commands: Commands) -> None:
    text = (
        "List stored runs, or change one. Without RUN, --tag, --note and --pin choose what is listed; "
        "with RUN they set that run's tags, note and pin (through the agent)."
    )
    parser = _command(commands, "runs", runs.runs, text)
    parser.add_argument("run_id", metavar="RUN", nargs="?", help="the run to show or change")
    parser.add_argument(
        "--tag", action="append", default=[], help="list: runs with this tag; RUN: its tags, repeatable"
    )
    parser.add_argument("--note", metavar="TEXT", help="list: runs whose note contains TEXT; RUN: its note")
    pin = parser.add_mutually_exclusive_group()
    pin.add_argument("--pin", dest="pinned", action="store_true", default=None, help="list: pinned runs; RUN: pin it")
    pin.add_argument("--unpin", dest="pinned", action="store_false", default=None, help="the opposite of --pin")


def _compare(commands: Commands) -> None:
    parser = _command(commands, "compare", runs.compare, "Two runs side by side: settings and metrics.")
    parser.add_argument("a", metavar="A")
    parser.add_argument("b", metavar="B")


def _export(commands: Commands) -> None:
    text = "Write a run with all its records to one file. `import-run` reads it on another machine."
    parser = _command(commands, "export", runs.export, text)
    parser.add_argument("run_id", metavar="RUN")
    parser.add_argument("-o", "--output", metavar="FILE", help="default RUN.slipstream.zip")


def _import(commands: Commands) -> None:
    parser = _command(commands, "import-run", runs.import_run, "Read an exported run into the store.")
    parser.add_argument("file", metavar="FILE")


# ---- values


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"a port is a number from 1 to 65535, got {text!r}")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a number of GPUs is a whole number from 1, got {text!r}")
    return int(text)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _levels(text: str) -> list[int]:
    words = _words(text)
    if not words or not all(word.isdecimal() for word in words):
        raise argparse.ArgumentTypeError(f"levels are whole numbers separated by commas, got {text!r}")
    return [int(word) for word in words]


def _assignment(text: str) -> tuple[str, str]:
    """A value may be a secret: a message never repeats it."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError("an environment variable is given as KEY=VALUE")
    return name, value
