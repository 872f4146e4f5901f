"""What the files say, as text for a person. Each function takes one document."""

from backend.cli.table import MISSING, size, table
from backend.schema.checkpoint import Inspection, Mtp
from backend.schema.validate import Check, CheckFinding, Trace

_MISSING_SHOWN = 5


def inspection(document: Inspection) -> str:
    quantization = document.quantization
    said = (f"{quantization.method}, {quantization.algo}" if quantization.method else MISSING) + (
        f", groups of {quantization.group_size}" if quantization.group_size else ""
    )
    head = table(
        ("checkpoint", document.path),
        [
            ("architecture", document.architecture or MISSING),
            ("quantisation", said),
            ("parameters", f"{document.parameters:,}"),
            ("tensors", f"{document.tensors:,} in {document.shards.present} of {document.shards.declared} files"),
            ("size", size(document.bytes)),
        ],
    )
    parts = [
        (part.owner, part.role, f"{part.tensors:,}", f"{part.parameters:,}", size(part.bytes), " ".join(part.dtypes))
        for part in document.parts
    ]
    warnings = "\n".join(f"  {warning.code}: {warning.message}" for warning in document.warnings)
    sections = [
        head,
        table(("of", "part", "tensors", "parameters", "size", "stored as"), parts) if parts else None,
        _mtp(document.mtp),
        f"Warnings\n{warnings}" if warnings else None,
    ]
    return "\n\n".join(section for section in sections if section)


def _mtp(mtp: Mtp) -> str:
    """The verdict on the MTP layer in a few lines."""
    if not mtp.tensors:
        declared = f"declared ({mtp.declared_by}) and not there" if mtp.declared_layers else "none"
        return f"MTP: {declared}"
    state = {True: "complete", False: "incomplete", None: "not judged"}[mtp.complete]
    lines = [
        f"MTP: {mtp.layers} layer{'s' if mtp.layers != 1 else ''}, {state}: {mtp.tensors:,} tensors, "
        f"{mtp.parameters:,} parameters, {size(mtp.bytes)}",
        f"  {mtp.why}" if mtp.why else "",
        *(f"  missing {name}" for name in mtp.missing[:_MISSING_SHOWN]),
        f"  … and {len(mtp.missing) - _MISSING_SHOWN} more" if len(mtp.missing) > _MISSING_SHOWN else "",
    ]
    return "\n".join(line for line in lines if line)


_STATUS = {"confirmed": "yes", "refuted": "NO", "unknown": "?"}


def trace(document: Trace) -> str:
    rows = [
        (_STATUS[step.status], step.id, step.detail, ":".join(str(p) for p in (step.file, step.line) if p))
        for step in document.steps
    ]
    after = "\n".join(f"  {item.question} {item.look_at}" for item in document.verify_after_launch)
    sections = [
        f"{document.verdict}: {document.summary}",
        f"checkpoint {document.model} ({document.architecture or MISSING})\n"
        f"engine {document.engine}, version {document.version or MISSING}",
        "\n".join(f"assumed: {assumed}" for assumed in document.assumed),
        table(("", "step", "detail", "evidence"), rows),
        f"To be verified after launch\n{after}",
    ]
    return "\n\n".join(section for section in sections if section)


def check(document: Check) -> str:
    head = f"{document.verdict}: engine {document.engine}, version {document.version or MISSING}"
    effective = list(document.effective.items())
    sections = [
        head,
        "\n".join(_finding(finding) for finding in document.findings),
        table(("flag", "effective"), effective) if effective else None,
    ]
    return "\n\n".join(section for section in sections if section)


def _finding(finding: CheckFinding) -> str:
    place = finding.evidence
    lines = [f"{finding.severity}: {finding.message} ({finding.rule})"]
    if finding.fix:
        lines.append(
            "  fix: " + " ".join(f"{flag} {value}".removesuffix(" true") for flag, value in finding.fix.items())
        )
    if place is not None:
        lines.append(f"  {place.file}{f':{place.line}' if place.line else ''}")
    return "\n".join(lines)
