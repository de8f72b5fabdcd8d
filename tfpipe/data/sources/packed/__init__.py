"""Images and crops in a few large files: what `tfpipe pack` writes, and ImageNet's TFRecords."""
