"""From a JPEG's bytes to crops: headers, windows, decoding, resizing, mirroring."""
