"""Which adapter a run starts from."""

from typing import Any, Self

from pydantic import model_validator

from ratchet.config.base import Settings, setting


class StartSettings(Settings):
    """The adapter that a run goes on from; its rank, alpha and targets are the run's. None: a new adapter."""

    adapter: str | None = setting(
        None,
        min_length=1,
        label="Start from",
        help="The id of a run whose adapter to go on from, or a folder with an adapter in PEFT layout, of the same "
        "base model and revision. Empty: a new adapter.",
    )
    run: str = setting("", label="Source run", help="The run that made the adapter; filled in.", typed=False)
    sha256: str = setting(
        "",
        pattern="^([0-9a-f]{64})?$",
        label="Adapter checksum",
        help="SHA-256 of the adapter's weights; filled in when the run is saved, checked before they load.",
        typed=False,
    )

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        # start_from: RUN says all there is to say.
        return {"adapter": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.adapter is None and (self.run or self.sha256):
            raise ValueError(
                "Start from names no adapter: give the run or the folder as start_from, or as start_from.adapter. "
                "start_from.run and start_from.sha256 are filled in by Ratchet."
            )
        return self
