"""Declared flags and accepted flags are the same, and bad ones are refused as SGLang refuses them."""

import argparse
import subprocess
import sys

import pytest
from engine_harness import ROOT

from backend.reference.flags import parser, scan
from backend.reference.server_args import ServerArgs, parse

MODEL = ("--model-path", "/models/m")


def test_every_declared_flag_is_accepted_and_every_accepted_flag_declared():
    declared = {spelling for flag in scan().flags for spelling in (flag.flag, *flag.aliases)}
    accepted = {
        s for action in parser()._actions if not isinstance(action, argparse._HelpAction) for s in action.option_strings
    }
    assert declared == accepted


def test_the_declared_line_is_where_the_flag_is_declared():
    found = scan()
    for item in [*found.flags, *found.env]:
        lines = (ROOT / item.file).read_text(encoding="utf-8").splitlines()
        name = getattr(item, "flag", None) or item.name
        assert any(f'"{name}"' in line for line in lines[item.line - 1 : item.line + 1]), name


def test_defaults_choices_and_fields_agree_with_the_arguments_in_effect():
    args, changes = parse(MODEL)
    assert changes == []
    fields = {flag.field: flag for flag in scan().flags}
    assert set(fields) == set(ServerArgs.__dataclass_fields__)
    resolved = {"model_path", "tokenizer_path", "served_model_name", "random_seed", "dtype"}
    for name, flag in fields.items():
        if name not in resolved:
            assert getattr(args, name) == flag.default, name


def test_the_agent_reads_the_flags_without_loading_torch():
    code = "import sys, backend.reference.flags, backend.reference.server_args; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip() == "False"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--no-such-flag", "3"), "error: unrecognized arguments: --no-such-flag 3"),
        (("--moe-runner-backend", "triton"), "invalid choice: 'triton'"),
        (("--speculative-eagle-topk", "4"), "invalid choice: 4"),
        (("--speculative-num-steps", "6"), "invalid choice: 6"),
        (("--max-running", "4"), "unrecognized arguments: --max-running"),  # no abbreviations
        (("--mem-fraction-static", "1.5"), "--mem-fraction-static: 1.5 is not in (0, 1]"),
        (("--max-running-requests", "0"), "--max-running-requests: 0 is not positive"),
        (("--speculative-num-draft-tokens", "-7"), "--speculative-num-draft-tokens: -7 is not positive"),
        (("--port", "many"), "invalid int value: 'many'"),
    ],
)
def test_a_bad_flag_ends_with_status_2_and_names_the_value(flags, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        parse((*MODEL, *flags))
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert "usage:" in error
    assert message in error


def test_speculation_numbers_default_to_3_1_4_and_changes_are_told():
    args, changes = parse((*MODEL, "--speculative-algorithm", "NEXTN"))
    assert (args.speculative_num_steps, args.speculative_eagle_topk, args.speculative_num_draft_tokens) == (3, 1, 4)
    assert args.speculative_algorithm == "EAGLE"
    assert changes == []
    given = ("--speculative-algorithm", "EAGLE", "--speculative-num-steps", "2", "--speculative-num-draft-tokens", "8")
    args, changes = parse((*MODEL, *given))
    assert (args.speculative_num_steps, args.speculative_num_draft_tokens) == (2, 3)
    assert changes == [
        "speculative_eagle_topk is not set: 1 is used.",
        "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when speculative_eagle_topk == 1",
    ]
    args, changes = parse((*MODEL, "--speculative-num-steps", "2"))
    assert args.draft_steps == 0
    assert len(changes) == 1


def test_the_draft_moe_runner_follows_the_targets_unless_given():
    base = (*MODEL, "--speculative-algorithm", "EAGLE", "--moe-runner-backend", "loop")
    assert parse(base)[0].speculative_moe_runner_backend == "loop"
    assert parse((*base, "--speculative-moe-runner-backend", "grouped"))[0].speculative_moe_runner_backend == "grouped"


def test_the_api_key_is_hidden_wherever_arguments_are_shown():
    args, _ = parse((*MODEL, "--api-key", "s3cret"))
    assert "s3cret" not in str(args)
    assert args.public()["api_key"] == "***"
    assert args.api_key == "s3cret"
