"""The adapter that a run starts from: found, checked and pinned before anything loads, without torch.

It must be of a full run that has ended with one, or an imported PEFT folder; of the same base model and revision;
whole; and of a kind that training here continues exactly. Rank and alpha are its own.
"""

import os
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from ratchet.config import LoraSettings, RunConfig
from ratchet.errors import Conflict, InvalidSetting, ModelUnavailable, NotFound, RatchetError
from ratchet.files import expanded
from ratchet.models.adapter_files import AdapterFiles, holds_adapter, read_adapter, refuse_misfit, refuse_unsupported
from ratchet.models.model_files import ModelFiles, conversion_path, find, in_folder, locate, small_files, tensor_shapes
from ratchet.run.ancestry import ADAPTER_FOLDER, of_run, refuse_changed
from ratchet.run.events import RunEnded
from ratchet.run.run_folder import RunFolder

_SHOWN = 19  # of a fingerprint: "sha256:" and twelve digits
_FIELD = "start_from.adapter"


class Started(NamedTuple):
    """Settings with the start filled in, and what to tell of it."""

    config: RunConfig
    notes: tuple[str, ...] = ()


def with_start(config: RunConfig) -> Started:
    """Check the adapter that a run starts from; return settings that pin it and have its rank and alpha.

    Raises:
        NotFound: there is no such run or folder.
        Conflict: it is a run that has no adapter to start from, or files are damaged or changed.
        InvalidSetting: it is of another base model or revision, or rank or alpha are given and not its own.
        ModelUnavailable: training cannot continue from its kind of adapter, or it does not fit the base model.
    """
    named = config.start_from.adapter
    if named is None:
        return Started(config)
    run, path = _found(named)
    end = None if run is None else finished(run)
    adapter = read_adapter(path)
    if end is not None:
        refuse_changed(path, adapter.sha256, end.adapter_sha256 or "")
    if config.start_from.sha256:
        refuse_changed(path, adapter.sha256, config.start_from.sha256)
    refuse_unsupported(adapter)
    base = _Base.of(config)
    notes = _of_run(run, adapter, base, config) if run else _of_import(adapter, base)
    refuse_misfit(adapter, tensor_shapes(find(config.model)), config.model)
    pinned = {"adapter": str(path), "run": run.run_id if run else "", "sha256": adapter.sha256}
    start = config.start_from.model_copy(update=pinned)
    filled_in = config.model_copy(update={"start_from": start, "lora": _locked(config.lora, adapter)})
    return Started(filled_in, tuple(notes))


def _found(named: str) -> tuple[RunFolder | None, Path]:
    """The run whose adapter is meant, None for an imported one, and the adapter's folder."""
    path = Path(os.path.abspath(expanded(named)))
    if path.name == ADAPTER_FOLDER and (path.parent / "run.json").is_file():
        path = path.parent
    if holds_adapter(path):
        return None, path
    try:
        run = RunFolder.at(path)
    except NotFound:
        raise NotFound(
            f"There is no adapter to start from in {path}: neither a run, nor an adapter in PEFT layout "
            "(adapter_config.json, adapter_model.safetensors)."
        ) from None
    return run, run.adapter_path


def finished(run: RunFolder) -> RunEnded:
    """The event that ended a run which has an adapter to start from.

    Raises:
        Conflict: it has none.
    """
    end = run.state().ended
    reason = why_no_adapter(run, end)
    if reason or end is None:
        raise Conflict(f"Cannot start from run {run.run_id}: {reason}")
    return end


def why_no_adapter(run: RunFolder, end: RunEnded | None) -> str:
    """Why a run has no adapter to start from, "" where it has one.

    Args:
        run: Of any kind and status.
        end: The event that ended it, None where there is none.
    """
    record = run.read_run()
    if record.get("kind", "full") == "trial":
        return "it is a trial, trained for one small round. Choose a full run."
    if run.is_locked():
        return "it is still running. Wait for it to end, or stop it."
    if end is None:
        return f"it has not ended. Resume it first: ratchet resume {record['id']}"
    if end.status not in ("completed", "stopped_early") or not end.adapter_sha256:
        status = end.status.replace("_", " ")
        return f"it is {status} and has no adapter. Choose a run that ended with an adapter."
    return ""


class _Base(NamedTuple):
    """The base model of a run that starts, and what its files may be known by."""

    name: str
    files: ModelFiles
    identities: frozenset[str]

    @classmethod
    def of(cls, config: RunConfig) -> "_Base":
        """Fingerprint a run's base model, by commit or content; a GGUF file is also known by its conversion.

        Raises:
            ModelUnavailable: there is none, or the commit of a hub id cannot be told.
        """
        files = locate(config.model)
        if not files.is_on_hub:
            found = {files.identity}
            if files.gguf_file and (conversion_path(files) / "config.json").is_file():
                found.add(in_folder(files.name, conversion_path(files)).identity)
            return cls(config.model, files, frozenset(found))
        folder = small_files(files, config.revision)
        if folder is None:
            raise ModelUnavailable(
                f"Neither the hub nor its cache says which commit revision {config.revision} of the base model "
                f"{config.model} is, so the adapter to start from cannot be compared with it. Check the connection, or "
                "give a local folder."
            )
        return cls(config.model, files, frozenset({folder.name}))

    def __str__(self) -> str:
        return _named(self.name, *sorted(self.identities))


def _named(model: str, *identities: str) -> str:
    return f"{model} ({' or '.join(one[:_SHOWN] for one in identities)})"


def _of_run(run: RunFolder, adapter: AdapterFiles, base: _Base, config: RunConfig) -> list[str]:
    """Refuse another base model than the source's; return what to tell of a source that differs otherwise."""
    source, origin = run.read_config(), of_run(run.path)
    if (adapter.rank, adapter.alpha) != (source.lora.rank, source.lora.alpha):
        raise Conflict(
            f"The adapter in {adapter.path} says rank {adapter.rank} and alpha {adapter.alpha}, but its run was "
            f"trained with {source.lora.rank} and {source.lora.alpha}. It was changed or damaged since."
        )
    if origin["model"] not in base.identities:
        raise _other_model(f"The adapter of run {run.run_id}", _named(source.model, origin["model"]), base)
    if source.quantization == config.quantization:
        return []
    return [
        f"The adapter was trained with quantization {source.quantization}, and this run has {config.quantization}: "
        "round 0 may score differently than the adapter did."
    ]


def _of_import(adapter: AdapterFiles, base: _Base) -> list[str]:
    """Refuse another base model than an imported adapter names; return what could not be compared."""
    name, revision = (adapter.settings.get(key) for key in ("base_model_name_or_path", "revision"))
    what = f"The adapter {adapter.path}"
    named = _located(name)
    if named is None or named.is_on_hub != base.files.is_on_hub:
        made_for = f"was made for {name}, which" if name else "does not say which base model it was made for, which"
        return [f"{what} {made_for} cannot be compared with {base}: only the shapes of its weights were checked."]
    if not named.is_on_hub:
        if named.identity not in base.identities:
            raise _other_model(what, _named(named.name, named.identity), base)
        return []
    if named.source != base.files.source:
        raise _other_model(what, named.name, base)
    if not revision:
        return [f"{what} does not say which revision of {name} it was made for: {base} is taken."]
    folder = small_files(named, str(revision))
    commit = folder.name if folder else str(revision)
    if commit not in base.identities:
        raise _other_model(what, _named(named.name, commit), base)
    return []


def _located(name: object) -> ModelFiles | None:
    """The model that an imported adapter names, None where it is not here."""
    try:
        return locate(name) if isinstance(name, str) and name else None
    except RatchetError:
        return None


def _other_model(what: str, was: str, base: _Base) -> InvalidSetting:
    return InvalidSetting(
        f"{what} was trained on the base model {was}, but this run's is {base}. Choose the same model and revision, or "
        "another adapter.",
        _FIELD,
    )


def _locked(given: LoraSettings, adapter: AdapterFiles) -> LoraSettings:
    """Take the adapter's own rank and alpha; refuse others that were given."""
    own = {"rank": adapter.rank, "alpha": adapter.alpha}
    for name, value in own.items():
        asked, field = getattr(given, name), LoraSettings.model_fields[name]
        if name in given.model_fields_set and asked != value:
            raise InvalidSetting(
                f"{field.title} is {asked}, but the adapter that the run starts from has {value}, which cannot change. "
                f"Leave {field.title} out, or set it to {value}.",
                f"lora.{name}",
            )
    try:
        return LoraSettings(**own)
    except ValidationError:
        raise ModelUnavailable(
            f"The adapter {adapter.path} has rank {adapter.rank} and alpha {adapter.alpha}; Ratchet trains ranks up to "
            "256 and alphas up to 512."
        ) from None
