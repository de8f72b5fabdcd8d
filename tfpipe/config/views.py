"""Several crops of each training image, `data.views`: what SimCLR, DINO and their kin train on."""

from typing import Annotated, Any, Literal

from pydantic import PositiveInt

from tfpipe.config.augment import Augment
from tfpipe.config.data_sections import RandomResizedCrop
from tfpipe.config.section import SIZE, Section, Size

# Seeds of the views after the first are beyond those of configs and of augmentation, so that no two draws are alike.
SEED_STRIDE = 2**41


class View(Section):
    """One view of each training image, or several that are drawn alike."""

    count: PositiveInt = 1
    """Number of views like this one."""
    crop: Literal["random_resized", "center", "full"] | None = None
    """Window of an image, of the kinds of `data.crop`; null: `data.crop`."""
    size: Annotated[Size | None, SIZE] = None
    """Height and width, or the side of a square; null: `data.crop_image_size`."""
    random_resized: RandomResizedCrop | None = None
    """Parameters of "random_resized"; null: `data.random_resized`."""
    flip: bool | None = None
    """Mirrors half of them; null: `data.flip`."""
    augment: Augment | None = None
    """Random changes; null: `data.augment`."""

    @property
    def settings(self) -> dict[str, Any]:
        """Keys of `data` that it sets, with their values."""
        values = {name: getattr(self, name) for name in ("crop", "random_resized", "flip", "augment")}
        return {name: value for name, value in (values | {"crop_image_size": self.size}).items() if value is not None}
