"""New runs made from old ones: retry, duplicate and continue; drafts, which are saved settings and nothing more.

A draft has a row in the database and no folder. Saving one starts no work, and nothing here restarts a run by itself:
each of these is asked for. What a run was made from is written into its own record, so that it outlives the database.
"""

from collections.abc import Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ratchet.config import LOSS_DEFAULTS, PRESETS, RunConfig
from ratchet.config.config_text import build, full_key
from ratchet.config.objectives import RATE_DEFAULTS
from ratchet.errors import Conflict, NotFound
from ratchet.service.runs.allowed_actions import Action, refuse
from ratchet.service.runs.registry import Origin, open_store
from ratchet.service.runs.runs import RunSummary, summary
from ratchet.service.runs.start_checks import check_run

if TYPE_CHECKING:
    from ratchet.store import RunStore, StoredRun


# What presets decide, and what is left open for one that is named anew.
_PRESET_FIELDS = frozenset(name for preset in PRESETS.values() for name in preset.rl)


@dataclass(frozen=True)
class Made:
    """Settings for a new run, and where they come from."""

    config: RunConfig
    origin: Origin


def retry(run_or_folder: str) -> Made:
    """Return the settings of a failed or cancelled run, to start again from round 1.

    Raises:
        NotFound: there is no such run.
        Conflict: its state does not allow it.
    """
    source = _allowed("retry", run_or_folder)
    return Made(source.config, Origin(source.run, "retry"))


def continued(run_or_folder: str, changes: Mapping[str, str]) -> Made:
    """Return the settings of a new run that goes on from a run's adapter; ``changes`` are laid over its settings.

    Raises:
        NotFound: there is no such run.
        Conflict: its state does not allow it, or it has no adapter.
        InvalidSetting: a change cannot be made.
    """
    source = _allowed("continue", run_or_folder)
    if not (source.folder / "adapter").is_dir():
        raise Conflict(
            f"The adapter of run {source.run} is no longer in {source.folder}, so nothing can go on from it."
        )
    config = laid_over(source.config, changes)
    start = type(config.start_from)(adapter=source.run)
    return Made(config.model_copy(update={"start_from": start}), Origin(source.run, "continue"))


def duplicate(run_or_folder: str, changes: Mapping[str, str]) -> "StoredRun":
    """Save the settings of a run, or of a draft, as a new draft, with ``changes`` laid over them.

    Raises:
        NotFound: there is no such run.
        RatchetError: what the checks of a run found: a draft that could not start is not saved.
    """
    if draft := find_draft(run_or_folder):
        given, source_run = draft.config, draft.source_run
    else:
        source = _allowed("duplicate", run_or_folder)
        given, source_run = source.config, source.run
    return save_draft(laid_over(given, changes), Origin(source_run, "duplicate" if source_run else None))


def save_draft(config: RunConfig, origin: Origin) -> "StoredRun":
    """Check settings and save them as a draft. Starts nothing.

    Raises:
        RatchetError: what the checks of a run found.
    """
    report = check_run(config)
    report.close()
    report.raise_faults()
    with open_store() as store:
        source = origin.run if origin.run is not None and _knows(store, origin.run) else None
        relation = origin.relation if source else None
        return store.add(config, source_run=source, source_relation=relation)


def launching(draft: str) -> Made:
    """Return the settings of a draft that is about to be launched; it is used up once the run is made.

    Raises:
        NotFound: there is no such draft.
        Conflict: it is no draft.
    """
    saved = find_draft(draft)
    if saved is None:
        found = summary(draft)
        _refuse("launch", found)
        raise AssertionError("only a draft can be launched")
    return Made(saved.config, Origin(saved.source_run, saved.source_relation, draft=saved.id))


def drop(draft: str) -> None:
    """Remove a draft.

    Raises:
        NotFound: there is no such draft.
        Conflict: it is no draft, or was launched meanwhile.
    """
    if find_draft(draft) is None:
        _refuse("drop", summary(draft))
    with open_store() as store:
        if not store.remove_draft(draft):
            raise Conflict(f"Draft {draft} was launched or dropped meanwhile.")


def laid_over(config: RunConfig, changes: Mapping[str, str]) -> RunConfig:
    """Return stored settings with changes, by key, laid over them.

    Stored settings are filled in. What was filled in because of a setting that changes is left open again, so that it
    follows the new one: the clip bounds of a loss, the learning rate of an objective, the verifier of a source, the
    rank of an adapter.

    Raises:
        InvalidSetting: a change cannot be made.
    """
    keys = {full_key(key): text for key, text in changes.items()}
    settings: dict[str, Any] = config.model_dump(mode="json")
    _open_learning(settings, config, keys.keys())
    if keys.get("data.source", config.data.source) != config.data.source:
        for section in ("data", "verifier", "prompt", "reward"):
            del settings[section]
    elif any(key.startswith("data.") for key in keys) and settings["data"].get("content_hash"):
        settings["data"]["content_hash"] = ""
    if "start_from.adapter" in keys:  # rank and alpha are those of the new source
        del settings["start_from"], settings["lora"]
    kind = config.verifier.kind if config.verifier else None
    if "verifier" in settings and keys.get("verifier.kind", kind) != kind:
        settings["verifier"] = {}
        settings["reward"]["format_bonus"] = None
    return build(settings, keys)


def _open_learning(settings: dict[str, Any], config: RunConfig, keys: Set[str]) -> None:
    """Leave open what was filled in because of a loss, an objective, a preset or a length that changes."""
    if "rl.loss" in keys:
        _open_again(settings["rl"], {"clip_low": LOSS_DEFAULTS[config.rl.loss][0]})
        _open_again(settings["rl"], {"clip_high": LOSS_DEFAULTS[config.rl.loss][1]})
        _open_again(settings["rl"], {"dynamic_sampling": LOSS_DEFAULTS[config.rl.loss].dynamic_sampling})
    if "rl.max_steps" in keys:  # one of the two says how long a run is
        del settings["rl"]["rounds"]
    if "rl.rounds" in keys:
        settings["rl"]["max_steps"] = None
    if "objective" in keys or "preset" in keys:
        _open_again(settings, {"learning_rate": config.rate if config.preset else RATE_DEFAULTS[config.objective]})
        settings["preset"] = None
    if "preset" in keys:
        for name in {*_PRESET_FIELDS, "rounds", "max_steps"} - {key.removeprefix("rl.") for key in keys}:
            settings["rl"].pop(name, None)


def _open_again(section: dict[str, Any], usual: Mapping[str, Any]) -> None:
    for name, value in usual.items():
        if section.get(name) == value:
            section[name] = None


def _allowed(action: Action, run_or_folder: str) -> RunSummary:
    found = summary(run_or_folder)
    _refuse(action, found)
    return found


def _refuse(action: Action, found: RunSummary) -> None:
    refuse(action, found.run, found.status, found.ended.ending if found.ended else None, found.kind)


def find_draft(name: str) -> "StoredRun | None":
    """Return the draft of this id, None where there is none."""
    with suppress(NotFound), open_store() as store:
        found = store.get(name)
        return found if found.status == "draft" else None
    return None


def _knows(store: "RunStore", run: str) -> bool:
    with suppress(NotFound):
        store.get(run)
        return True
    return False
