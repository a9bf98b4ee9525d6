"""The platform of the oracle's formulas: links by number of devices, element size, samples."""

from __future__ import annotations

from itertools import pairwise

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PlatformLink(_Part):
    """The links among some number of devices.

    Attributes
    ----------
    up_to : int or None
        Most devices that these links join; None for any number.
    bytes_per_s : float
        Rate of a link, bytes/s.
    latency_s : float
        Start-up of a message, s.
    """

    up_to: int | None = Field(default=None, ge=1)
    bytes_per_s: float = Field(gt=0)
    latency_s: float = Field(ge=0)


class Platform(_Part):
    """The machine and the data, as the formulas see them.

    Attributes
    ----------
    bytes_per_element : float
        Bytes of an element of activations, weights and gradients.
    samples : int
        Samples of an epoch.
    links : tuple of PlatformLink
        Links by the number of devices that communicate, the fewest devices first.
    input_elements : float
        Elements of a sample that the network reads.
    shared_uplink : bool
        Whether all devices of a node share its link to other nodes: of data+filter, as many flows
        as a node has devices, there and back, then divide the rate between nodes.
    """

    bytes_per_element: float = Field(gt=0)
    samples: int = Field(ge=1)
    links: tuple[PlatformLink, ...] = Field(min_length=1)
    input_elements: float = Field(default=0, ge=0)
    shared_uplink: bool = True

    @model_validator(mode="after")
    def _check(self) -> Platform:
        limits = [each.up_to for each in self.links]
        if any(limit is None for limit in limits[:-1]):
            raise ValueError("links: only the last may have no up_to")
        known = [limit for limit in limits if limit is not None]
        if any(one >= other for one, other in pairwise(known)):
            raise ValueError("links: up_to must rise from link to link")
        return self

    def link(self, num_devices: int) -> PlatformLink:
        """The links among a number of devices; more than the last has are joined by the last."""
        for each in self.links:
            if each.up_to is None or num_devices <= each.up_to:
                return each
        return self.links[-1]
