"""A trace as Markdown, for an issue or a note."""

from backend.schema.validate import Trace

_MARK = {"confirmed": "yes", "refuted": "**no**", "unknown": "not known"}


def trace_markdown(trace: Trace) -> str:
    """A heading with the verdict, a table of the steps with file and line, and what is left to verify."""
    lines = [
        f"# MTP trace: {trace.verdict}",
        "",
        f"{trace.summary[:1].upper()}{trace.summary[1:]}.",
        "",
        f"- checkpoint: `{trace.model}` ({trace.architecture or 'no architecture'})",
        f"- engine: `{trace.engine}`{f', version {trace.version}' if trace.version else ''}",
        *(f"- assumed: {assumed}" for assumed in trace.assumed),
        "",
        "| proposition | | evidence | detail |",
        "|---|---|---|---|",
    ]
    for step in trace.steps:
        place = f"`{step.file}{f':{step.line}' if step.line else ''}`" if step.file else ""
        lines.append(f"| {step.proposition} | {_MARK[step.status]} | {place} | {_cell(step.detail)} |")
    lines += ["", "To be verified after launch:", ""]
    lines += [f"- {item.question} {item.look_at[:1].upper()}{item.look_at[1:]}." for item in trace.verify_after_launch]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
