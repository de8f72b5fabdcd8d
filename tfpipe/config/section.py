"""The base of all sections, and the types of values that several of them share."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo


def _beside_config(path: Path, info: ValidationInfo) -> Path:
    base = (info.context or {}).get("base", Path())
    return (base / path.expanduser()).resolve()


# A relative path is resolved against the config file's folder.
ConfigPath = Annotated[Path, AfterValidator(_beside_config)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Kernel = Literal["bilinear", "bicubic", "area", "antialias"]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)
