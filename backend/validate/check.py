"""Checks a configuration before it is launched: words the engine does not know, and what it will refuse or change."""

import re
from collections.abc import Iterator

from backend.checkpoint import inspect_checkpoint
from backend.engine_scan import SourceTree, open_source, scan_engine
from backend.flagwords import longer_names, split_flags, unabbreviated, wrong_flag
from backend.paths import PROJECT_ROOT, TINY_CHECKPOINT, StatePaths
from backend.schema.engine import EngineKind, Scan
from backend.schema.validate import Check, CheckFinding, CheckRequest, Evidence
from backend.validate.launch_steps import launch_files, speculative_moe_backend
from backend.validate.question import Question, given_flags
from backend.validate.rules import RULES, Rule
from backend.validate.setting import Setting, gpu_major

_EAGLE = re.compile(r'"EAGLE"|eagle_family')
_NEAR = 600  # characters before a rule's words in which its algorithm is named


def check(kind: EngineKind, engine: str | None, request: CheckRequest, paths: StatePaths | None = None) -> Check:
    """Raises ModelNotFoundError or InputError when checkpoint or engine cannot be read."""
    inspection = inspect_checkpoint(request.model or str(TINY_CHECKPOINT), paths)
    scan = scan_engine(kind, engine, paths)
    reference = kind is EngineKind.REFERENCE or engine is None
    tree = SourceTree(PROJECT_ROOT / "backend") if reference or engine is None else open_source(engine)
    question = Question(inspection, scan, tree, given_flags(request.flags, scan), request.env)
    setting = Setting(question, gpu_major(request.gpu))
    effective = {flag: " ".join(values) or "true" for flag, values in question.given.items()}
    findings = [*_words(request, scan), *_gpu(request)]
    if not reference:
        findings += _moe(question)
        for rule in RULES:
            if rule.applies(setting):
                finding = _finding(rule, setting)
                findings += [finding] if finding else []
                if finding and finding.severity != "unknown" and rule.effective is not None:
                    effective |= rule.effective(setting)
    severities = {finding.severity for finding in findings}
    verdict = "reject" if "error" in severities else "warn" if severities & {"override", "warning"} else "ok"
    return Check.model_validate(
        {
            "verdict": verdict,
            "engine": "reference" if reference else scan.root,
            "version": scan.version,
            "findings": findings,
            "effective": effective,
            "argv": request.flags,
        }
    )


def _words(request: CheckRequest, scan: Scan) -> Iterator[CheckFinding]:
    """Flags that the engine does not have, values that they do not take, and spellings on their way out."""
    for given in split_flags(unabbreviated(request.flags, scan), scan):
        wrong = wrong_flag(given, scan)
        if len(longer := longer_names(given.name, scan)) > 1:
            message = f"{given.name} is short for several flags and refused as ambiguous: {', '.join(longer[:5])}"
            yield CheckFinding(rule="ambiguous_flag", severity="error", message=message, flags=[given.name])
            continue
        flag = scan.flag(given.name)
        evidence = Evidence(file=flag.file, line=flag.line) if flag is not None and flag.file else None
        if wrong is not None:
            rule = "unknown_flag" if flag is None and scan.negated(given.name) is None else "wrong_value"
            yield CheckFinding(rule=rule, severity="error", message=wrong, flags=[given.name], evidence=evidence)
        elif flag is not None and flag.deprecated:
            instead = f"; use {flag.replacement}" if flag.replacement else ""
            message = f"{given.name} is deprecated in this engine{instead}"
            yield CheckFinding(
                rule="deprecated_flag", severity="warning", message=message, flags=[given.name], evidence=evidence
            )


def _gpu(request: CheckRequest) -> Iterator[CheckFinding]:
    if request.gpu and gpu_major(request.gpu) is None:
        message = f"{request.gpu} is no GPU that is known here, so rules about compute capability are left out"
        yield CheckFinding(rule="gpu_not_known", severity="info", message=message)


def _moe(question: Question) -> Iterator[CheckFinding]:
    """The draft's MoE backend, as the trace judges it."""
    step = speculative_moe_backend(question)
    if step.status == "refuted" and question.value("--speculative-algorithm") and not step.detail.startswith("--"):
        evidence = Evidence(file=step.file, line=step.line, excerpt=step.excerpt) if step.file else None
        flag = "--speculative-moe-runner-backend"
        yield CheckFinding(
            rule="draft_moe_backend",
            severity="error",
            message=step.detail,
            flags=[flag],
            fix={flag: "auto"},
            evidence=evidence,
        )


def _finding(rule: Rule, setting: Setting) -> CheckFinding | None:
    """None where the engine does not have the rule and nothing is worth saying about it."""
    evidence = _anchored(rule.anchor, setting.question.tree) if rule.anchor is not None else None
    fix = rule.fix(setting) if rule.fix is not None else None
    if rule.anchor is not None and evidence is None:
        if rule.silent:
            return None
        message = f"unknown in this engine, as its source does not have the words of it: {rule.message}"
        return CheckFinding(rule=rule.id, severity="unknown", message=message, flags=list(rule.flags))
    return CheckFinding(
        rule=rule.id,
        severity=rule.severity,
        message=rule.message,
        flags=list(rule.flags),
        fix=fix,
        evidence=evidence,
    )


def _anchored(anchor: re.Pattern[str], tree: SourceTree) -> Evidence | None:
    """Where the launch code says these words: of several places the one that is about EAGLE."""
    for file in launch_files(tree):
        module = tree.module(file)
        places = [match.start() for match in anchor.finditer(module.source)] if module is not None else []
        if module is not None and places:
            place = next((p for p in places if _EAGLE.search(module.source, max(0, p - _NEAR), p)), places[0])
            line = module.source.count("\n", 0, place) + 1
            return Evidence(file=module.file, line=line, excerpt=module.excerpt(line))
    return None
