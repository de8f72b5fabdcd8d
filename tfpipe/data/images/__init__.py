"""From a JPEG's bytes to crops: headers, windows, decoding, resizing, mirroring."""

__all__ = ["crops", "damage", "decode", "headers", "windows"]
