"""JPEGs decoded whole by libjpeg-turbo, which says what is wrong with one."""

import simplejpeg

from tfpipe.data.headers import TOO_LARGE

JPEG = b"\xff\xd8"


def find_damage(contents: bytes, channels: int) -> str | None:
    """What libjpeg-turbo objects to in a JPEG, or that it is none; None if nothing. TensorFlow may read it even so.

    Args:
        contents: of the file.
        channels: 1 or 3, to decode to.
    """
    try:
        height, width, *_ = simplejpeg.decode_jpeg_header(contents)
        if height * width * channels >= TOO_LARGE:
            return f"{width} x {height} pixels are more than TensorFlow decodes"
        simplejpeg.decode_jpeg(contents, "GRAY" if channels == 1 else "RGB")
    except ValueError as damage:
        return str(damage)
    return None
